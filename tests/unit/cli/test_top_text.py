"""What `top` says of a look: sparklines, phases, the sentence, and what stands out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from probe_agent.wire import TargetInfo
from probe_cli.diagnose import Diagnosis
from probe_cli.top.look import Look, RankLook
from probe_cli.top.text import SORTS, found, letters, line_of, place, sentence, sorted_by, spark

INFO = TargetInfo(
    100, 0, 0, 2, "node1", 0, True, "running", 9, 0.1, 9.0, ("python", "train.py"), "3.11", "2.13", "1", "planned", 0.0,
    "",
)  # fmt: skip
STEPS: dict[str, Any] = {
    "step": 9, "age": 0.1, "usual": 0.2, "lasted": 2.0, "durations": [0.2] * 10, "rss": 100.0, "data_wait": 1.0,
    "forward": 0.5, "backward": 0.4, "other": 0.1,
}  # fmt: skip


def rank(number: int, *, waited: float | None = None, problem: str = "", **steps: Any) -> RankLook:
    info = replace(INFO, rank=number, pid=100 + number)
    return RankLook(info, {} if problem else STEPS | steps, waited, None, ("train", "/a/train.py", 88), problem)


def look(*ranks: RankLook, missing: tuple[str, ...] = ()) -> Look:
    return Look(ranks, missing, 0)


def test_a_spark_keeps_the_largest_of_values_that_share_a_block() -> None:
    values = [1.0] * 50 + [9.0] + [1.0] * 9

    drawn = spark(values, 12, 1.0, 9.0)

    assert len(drawn) == 12
    assert drawn.count("█") == 1
    assert drawn[10] == "█"
    assert spark(values, 60, 1.0, 9.0)[50] == "█"
    assert set(spark([2.0, 2.0], 5, 2.0, 2.0)) == {"▁"}


def test_letters_share_the_width_as_phases_share_the_time() -> None:
    drawn = letters({"data_wait": 0.5, "forward": 0.26, "backward": 0.24}, 20)

    assert drawn == "D" * 10 + "F" * 5 + "B" * 5


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (look(rank(0), rank(1)), "stepping: step 9, 200 ms each, 5 steps/s"),
        (look(rank(0, age=60.0), rank(1, age=61.0)), "no step for 1m 00s, usual 200 ms"),
        (look(rank(0), rank(1, age=61.0)), "stepping: step 9, 200 ms each, 5 steps/s; silent: rank 1"),
        (look(rank(0, waited=1.0), rank(1, waited=0.1)), "rank 1 waits least for the others (5 %)"),
        (look(rank(0), rank(1, problem="no answer within 3 s")), "1 of 2 ranks answered: stepping"),
        (look(rank(0), missing=("rank 1: it has no recorder",)), "1 of 2 ranks answered: stepping"),
        (look(rank(0, step=None)), "no step is recorded yet"),
    ],
)
def test_the_sentence_says_what_the_ranks_do_and_who_is_missing(seen: Look, said: str) -> None:
    assert said in sentence(seen)


def test_a_job_that_has_ended_is_not_stepping() -> None:
    ended = rank(0, age=3600.0)
    ended = replace(ended, info=replace(ended.info, alive=False))

    assert sentence(look(ended)) == "no step for 1h 00m, usual 200 ms; the job has ended"


def test_ranks_are_sorted_by_what_stands_out_and_what_is_unknown_comes_last() -> None:
    ranks = [rank(0, usual=0.2), rank(1, usual=0.4), rank(2, problem="no answer")]

    orders = {name: [one.info.rank for one in sorted_by(name, ranks)] for name in SORTS}

    assert orders["rank"] == [0, 1, 2]
    assert orders["step time"] == [1, 0, 2]
    assert all(order[-1] == 2 for order in orders.values())


def test_a_plain_line_has_the_figures_and_no_control_characters() -> None:
    line = line_of(replace(rank(3), line=("f\x1b[31m", "/a/train.py", 88)))

    assert line.startswith("rank 3  step 9  200 ms each  last 100 ms ago  data_wait 50 %")
    assert "train.py:88 f" in line
    assert "\x1b" not in line
    assert line_of(rank(4, problem="no answer")) == "rank 4  no answer"


def test_no_findings_tells_how_many_rules_judged_and_could_not() -> None:
    assert found(Diagnosis((), {"a": "no row"}, {}, ("b", "c")), 3) == [
        "nothing found by 2 rules; 1 rules could not judge"
    ]


@pytest.mark.parametrize(
    ("width", "shown"),
    [(None, "a_long_name.py:88 step"), (17, "a_long_name.py:88 step"), (9, "…me.py:88")],
)
def test_a_line_keeps_its_number_where_there_is_little_room(width: int | None, shown: str) -> None:
    assert place(replace(rank(0), line=("step", "/job/a_long_name.py", 88)), width) == shown
