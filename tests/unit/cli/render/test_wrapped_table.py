"""A table on a terminal with wrapped prose: nothing is cut, and nothing is wider than the terminal."""

from __future__ import annotations

import pytest

from probe_cli.render import Sheet
from probe_cli.render.table import wrapped
from probe_cli.render.terminal import width_of, wrap

SHEET = Sheet(
    ("name", "rows", "meaning"),
    ("VARCHAR", "BIGINT", "VARCHAR"),
    [["python.steps", 12, "one row for each optimizer step, sampled or not"], ["job.läufe", None, "漢字 " * 12]],
    prose="meaning",
)


@pytest.mark.parametrize("width", [20, 30, 42, 60, 200])
def test_every_word_is_there_at_any_width(width: int) -> None:
    lines = list(wrapped(SHEET, width))

    assert max(map(width_of, lines)) <= width
    seen = "".join("".join(lines).split())
    assert seen.count("漢字") == 12
    if width >= 30:
        assert "python.steps" in seen
        assert {"optimizer", "sampled"} <= set(" ".join(lines).replace(",", "").split())


def test_prose_goes_on_below_itself() -> None:
    lines = list(wrapped(SHEET, 42))

    assert lines[0] == "name          rows  meaning"
    assert lines[2] == "python.steps    12  one row for each"
    assert lines[3] == " " * 20 + "optimizer step,"


def test_without_room_each_row_is_a_block() -> None:
    lines = list(wrapped(SHEET, 30))

    assert lines[:3] == ["name     python.steps", "rows     12", "meaning  one row for each"]


def test_a_word_wider_than_the_line_is_broken_and_not_lost() -> None:
    assert wrap("ab abcdefgh x", 3) == ["ab", "abc", "def", "gh", "x"]
    assert wrap("", 3) == [""]
