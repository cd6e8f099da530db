"""Answers become wire classes."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from probe_agent import wire


def test_a_message_of_one_side_is_read_by_the_other() -> None:
    frame = wire.Frame("step", "/job/train.py", 12, 0, "python", "loss.backward()")
    thread = wire.ThreadStack("MainThread", 1, None, True, True, False, (frame,))
    said = wire.Backtrace((thread,), "recorder", ("a",))

    read = wire.decode(wire.Backtrace, json.loads(json.dumps(asdict(said))))

    assert read == said


def test_a_field_of_a_newer_server_is_skipped() -> None:
    answer = {"detached": 7, "and_more": True}

    read = wire.decode(wire.Detached, answer)

    assert read == wire.Detached(7)


def test_defaults_fill_what_a_line_leaves_out() -> None:
    line = {"note": "model: local of main()"}

    read = wire.decode(wire.EvalLine, line)

    assert read.note == "model: local of main()"
    assert not read.done


@pytest.mark.parametrize("answer", [{}, [], None, {"threads": {}, "source": "recorder", "notes": []}])
def test_an_answer_of_another_shape_is_refused(answer: object) -> None:
    with pytest.raises(ValueError, match=r"missing|expected"):
        wire.decode(wire.Backtrace, answer)
