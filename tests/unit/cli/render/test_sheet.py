"""Formats for other programs: json, jsonl and csv."""

from __future__ import annotations

import csv
import json

from probe_cli.render import Sheet
from probe_cli.render.sheet import csv_lines, json_lines, jsonl_lines

SHEET = Sheet(
    ("n", "text", "flag", "list"),
    ("BIGINT", "VARCHAR", "BOOLEAN", "VARCHAR[]"),
    [[1, 'say "hi", you', True, ["a"]], [None, None, False, []], [2, "", None, None]],
)


def test_json_is_one_array_of_objects() -> None:
    records = json.loads("\n".join(json_lines(SHEET)))

    assert records[0] == {"n": 1, "text": 'say "hi", you', "flag": True, "list": ["a"]}
    assert records[1]["text"] is None


def test_json_of_no_rows_is_an_empty_array() -> None:
    assert json.loads("\n".join(json_lines(Sheet(("n",), ("BIGINT",), [])))) == []


def test_jsonl_is_an_object_a_line() -> None:
    assert [json.loads(line)["n"] for line in jsonl_lines(SHEET)] == [1, None, 2]


def test_csv_reads_back() -> None:
    rows = list(csv.reader(csv_lines(SHEET)))

    assert rows == [["n", "text", "flag", "list"], ["1", 'say "hi", you', "true", '["a"]'], ["", "", "false", "[]"],
                    ["2", "", "", ""]]  # fmt: skip


def test_csv_tells_an_empty_text_from_null() -> None:
    assert list(csv_lines(SHEET))[2:] == [",,false,[]", '2,"",,']


def test_a_name_that_comes_twice_loses_no_value() -> None:
    records = list(Sheet(("n", "n"), ("BIGINT", "BIGINT"), [[1, 2]]).records())

    assert records == [{"n": 1, "n_1": 2}]
