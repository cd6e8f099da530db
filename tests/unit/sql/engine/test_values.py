"""Rows as JSON."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta
from decimal import Decimal

from probe_agent.sql.engine.values import json_rows


def test_values_that_json_has_are_unchanged() -> None:
    rows = [(1, 2.5, "ü", True, None)]

    assert json.loads(json_rows(rows, ["BIGINT", "DOUBLE", "VARCHAR", "BOOLEAN", '"NULL"'])) == [
        [1, 2.5, "ü", True, None]
    ]


def test_floats_that_json_lacks_are_strings() -> None:
    rows = [(1.0, float("nan")), (float("inf"), float("-inf"))]

    assert json.loads(json_rows(rows, ["DOUBLE", "FLOAT"])) == [[1.0, "NaN"], ["Infinity", "-Infinity"]]


def test_times_are_iso_8601() -> None:
    rows = [(datetime(2026, 11, 21, 8), date(2026, 11, 21), timedelta(days=1))]

    assert json.loads(json_rows(rows, ["TIMESTAMP", "DATE", "INTERVAL"])) == [
        ["2026-11-21T08:00:00.000000", "2026-11-21", "1 day, 0:00:00"]
    ]


def test_nested_values_are_converted_all_the_way_down() -> None:
    rows = [([{"a": Decimal("1.5")}, float("nan")], {1: b"\x01"})]

    assert json.loads(json_rows(rows, ["STRUCT[]", "MAP(INTEGER, BLOB)"])) == [[[{"a": 1.5}, "NaN"], {"1": "01"}]]


def test_no_rows_are_an_empty_list() -> None:
    assert json_rows([], ["TIMESTAMP"]) == "[]"


def test_lists_of_plain_values_are_as_they_are_and_what_json_lacks_in_them_is_a_string() -> None:
    rows = [([1, None], ["a", None], [0.5, None, float("nan")], [[1.0, float("inf")]])]

    assert json.loads(json_rows(rows, ["BIGINT[]", "VARCHAR[]", "DOUBLE[]", "DOUBLE[][]"])) == [
        [[1, None], ["a", None], [0.5, None, "NaN"], [[1.0, "Infinity"]]]
    ]
