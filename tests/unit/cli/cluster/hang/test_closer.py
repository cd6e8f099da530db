"""A hang is said only if a third look finds the ranks to blame where they were."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from probe_agent.wire import Frame
from probe_cli.cluster.hang.closer import looked_closer
from probe_cli.cluster.hang.details import Details
from probe_cli.cluster.hang.looks import Look
from probe_cli.cluster.hang.verdict import State, Verdict, judge

from .test_verdict import RANKS, at, looks, rank_look, stack, target

WAITS = stack(
    Frame("Future.result", "/usr/lib/python3.11/concurrent/futures/_base.py", 451, 0, "python", ""),
    Frame("save", "/home/me/train.py", 88, 1, "python", "pool.submit(write).result()"),
)
NOTHING_RUNS = Details(("no other thread of it runs code of the job",))


def said(details: Details, last: Look | None) -> tuple[Verdict, list[Sequence[int]]]:
    """The verdict on a job whose rank 2 waits for a future, with what is seen of it afterwards."""
    seen = {**looks(60.0, None), 2: rank_look(40, False, 60.0, WAITS)}
    answers: list[Any] = [{2: details}, {} if last is None else {2: last}]
    asked: list[Sequence[int]] = []

    async def ask(question: object, ranks: Sequence[int]) -> Any:
        asked.append(ranks)
        return answers[len(asked) - 1]

    judged = partial(judge, {rank: target(rank) for rank in RANKS})
    verdict = asyncio.run(looked_closer(judged, seen, seen, ask, between_s=2.0, timeout_s=5.0))
    return verdict, asked


@pytest.mark.parametrize("last", [rank_look(40, False, 61.0, WAITS), None])
def test_a_rank_that_is_still_there_hangs(last: Look | None) -> None:
    verdict, asked = said(NOTHING_RUNS, last)

    assert (verdict.state, verdict.ranks) == (State.HANGS, (2,))
    assert "rank 2 waits for a future (result) in save (train.py:88); no other thread" in verdict.sentence
    assert asked == [[2], [2]]


@pytest.mark.parametrize(
    "last", [rank_look(41, True, 0.1, at("dist.barrier()")), rank_look(40, False, 61.0, at("x.backward()"))]
)
def test_a_rank_whose_thread_has_saved_meanwhile_has_gone_on(last: Look) -> None:
    verdict, _ = said(NOTHING_RUNS, last)

    assert verdict.state in (State.NONE, State.SLOW)


def test_of_a_rank_whose_thread_works_that_is_enough() -> None:
    verdict, asked = said(Details(("meanwhile its thread saves",), may_be_healthy=True), None)

    assert verdict.state is State.SLOW
    assert asked == [[2]]
