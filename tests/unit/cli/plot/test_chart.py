"""What of an answer becomes x, y and series, and answers that cannot be drawn."""

from __future__ import annotations

from datetime import datetime
from math import isnan

import pytest

from probe_agent.errors import BadRequest
from probe_agent.wire import QueryColumn
from probe_cli.plot.chart import chart_of
from probe_cli.plot.terminal import lines_of


def columns(**types: str) -> list[QueryColumn]:
    return [QueryColumn(name, kind) for name, kind in types.items()]


def test_the_first_column_is_x_and_other_numbers_are_y() -> None:
    chart = chart_of(columns(step="BIGINT", loss="DOUBLE", lr="DOUBLE"), [[2, 0.5, 0.1], [1, "NaN", None]])

    assert (chart.x, chart.kind) == ("step", "number")
    assert [series.name for series in chart.series] == ["loss", "lr"]
    assert chart.series[0].xs == (1.0, 2.0)
    assert isnan(chart.series[0].ys[0])
    assert chart.series[0].ys[1] == 0.5


def test_a_text_or_the_rank_names_the_series() -> None:
    by_text = chart_of(columns(step="BIGINT", stage="VARCHAR", t="DOUBLE"), [[1, "forward", 1.0], [1, "backward", 2.0]])
    by_rank = chart_of(columns(step="BIGINT", rank="BIGINT", t="DOUBLE"), [[1, 0, 1.0], [1, 1, 2.0], [2, 1, 3.0]])
    only_rank = chart_of(columns(step="BIGINT", rank="BIGINT"), [[1, 0], [2, 1]])
    chosen = chart_of(columns(a="BIGINT", b="BIGINT", c="BIGINT"), [[1, 7, 3]], by="b")

    assert [series.name for series in by_text.series] == ["forward", "backward"]
    assert [(series.name, series.ys) for series in by_rank.series] == [("rank 0", (1.0,)), ("rank 1", (2.0, 3.0))]
    assert only_rank.y == "rank"
    assert [(series.name, series.ys) for series in chosen.series] == [("b 7", (3.0,))]


def test_x_may_be_a_time_or_a_text_and_rows_without_x_are_left_out() -> None:
    time = chart_of(columns(ts="TIMESTAMP", n="BIGINT"), [["2026-01-02T03:04:05.5", 1], [None, 2]])
    text = chart_of(columns(module="VARCHAR", n="BIGINT"), [["b", 1], ["a", 2]])

    assert time.series[0].xs == (datetime(2026, 1, 2, 3, 4, 5, 500_000),)
    assert time.num_left_out == 1
    assert text.series[0].xs == ("b", "a")


@pytest.mark.parametrize(
    ("types", "row", "why"),
    [
        ({"step": "BIGINT"}, [1], "one column"),
        ({"step": "BIGINT", "shape": "BIGINT[]"}, [1, [2]], "column shape cannot be drawn"),
        ({"step": "BIGINT", "ts": "TIMESTAMP"}, [1, "2026-01-01T00:00:00"], "y is a number"),
        ({"step": "BIGINT", "a": "VARCHAR", "b": "VARCHAR"}, [1, "a", "b"], "both texts"),
        ({"step": "BIGINT", "a": "VARCHAR"}, [1, "a"], "no column is left to be y"),
        ({"step": "BIGINT", "loss": "DOUBLE"}, [1, "Infinity"], "no value in 1 rows"),
    ],
)
def test_an_answer_that_cannot_be_drawn_says_why_and_what_to_select(
    types: dict[str, str], row: list[object], why: str
) -> None:
    with pytest.raises(BadRequest, match=why) as refusal:
        chart_of(columns(**types), [row])

    assert refusal.value.hint


def test_too_many_series_are_refused() -> None:
    rows = [[1, rank, 1.0] for rank in range(100)]

    with pytest.raises(BadRequest, match="100 series"):
        chart_of(columns(step="BIGINT", rank="BIGINT", t="DOUBLE"), rows)


def test_lines_fit_and_show_high_and_low_values() -> None:
    rows: list[list[object]] = [[step, rank, float(step * (rank + 1))] for step in range(50) for rank in range(2)]
    chart = chart_of(columns(step="BIGINT", rank="BIGINT", t="DOUBLE"), rows)

    lines = list(lines_of(chart, 80, 24, colour=False))

    assert max(map(len, lines)) <= 80
    assert len(lines) <= 24
    assert "rank 0" in lines[-1]
    assert "rank 1" in lines[-1]
    drawn = [line for line in lines if line.startswith("│")]
    assert "+" in drawn[1]  # rank 1 is at the top, and rank 0 only reaches the middle
    assert "*" not in drawn[1]


def test_bars_are_as_long_as_their_values() -> None:
    chart = chart_of(columns(module="VARCHAR", t="DOUBLE"), [["a", 4.0], ["b", 2.0], ["\x1b[31mc", None]])

    lines = list(lines_of(chart, 60, 24, colour=False))

    assert lines[1].count("█") == pytest.approx(2 * lines[2].count("█"), abs=1)
    assert lines[3].endswith("NULL")
    assert "\x1b" not in lines[3]
    assert max(map(len, lines)) <= 60
