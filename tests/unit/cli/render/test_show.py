"""Answers of one endpoint and of several, in the formats that programs read."""

from __future__ import annotations

import json

import pytest

from probe_agent.errors import NoAnswer
from probe_cli.cluster.fanout import Answers
from probe_cli.endpoint import TcpServer
from probe_cli.render import Sheet
from probe_cli.render.show import show_answers

ONE, TWO = TcpServer("one", 1), TcpServer("two", 2)
SHEET = Sheet(("pid", "text"), ("BIGINT", "VARCHAR"), [[7, "a"], [8, None]])
ROWS = [{"pid": 7, "text": "a"}, {"pid": 8, "text": None}]
REFUSED = NoAnswer("two:2 refused the connection", "start the host server there: probe serve")


def test_one_endpoint_is_a_list_of_rows_and_an_envelope_where_that_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = Answers(((ONE, None),), ())

    show_answers(answers, [(ONE, SHEET)], "json", [(ONE, "cut")])
    rows = capsys.readouterr()
    show_answers(answers, [(ONE, SHEET)], "envelope", [(ONE, "cut")])
    envelope = json.loads(capsys.readouterr().out)

    assert (json.loads(rows.out), rows.err) == (ROWS, "cut\n")
    assert envelope == {
        "rows": ROWS,
        "columns": [{"name": "pid", "type": "BIGINT"}, {"name": "text", "type": "VARCHAR"}],
        "notes": ["cut"],
        "answered": ["one:1"],
        "unanswered": [],
    }


def test_several_endpoints_are_an_envelope_that_names_the_unanswered(capsys: pytest.CaptureFixture[str]) -> None:
    show_answers(Answers(((ONE, None),), ((TWO, REFUSED),)), [(ONE, SHEET)], "json", [(ONE, "cut")])

    envelope = json.loads(capsys.readouterr().out)
    assert envelope["rows"] == [{"endpoint": "one:1", **row} for row in ROWS]
    assert (envelope["notes"], envelope["answered"]) == (["one:1: cut"], ["one:1"])
    assert envelope["unanswered"] == [{"endpoint": "two:2", "message": REFUSED.message, "hint": REFUSED.hint}]


def test_an_envelope_without_rows_is_whole_json(capsys: pytest.CaptureFixture[str]) -> None:
    show_answers(Answers((), ((TWO, REFUSED), (ONE, REFUSED))), [], "json")

    assert json.loads(capsys.readouterr().out)["rows"] == []
