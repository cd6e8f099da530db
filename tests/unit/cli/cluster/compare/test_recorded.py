"""Comparison of recorded real jobs: rows of tests/targets/straggling.py, four ranks on a busy machine of two cores.

`recorded.json` has for each case the contents of `python.steps` and `torch.flight_recorder`, a row per step and
call. The slow rank slept 20 ms a step.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probe_cli.cluster.compare.by import WAYS
from probe_cli.cluster.compare.comparison import Verdict
from probe_cli.cluster.compare.facts import Facts, Who

from .made import CALL, STEP, columns

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())
STEPS = ("number", "ended", "duration", "data_wait", "forward", "backward", "optimizer", "other", "sampled")
CALLS = ("step", "group", "seq", "op", "start")
NUM_STEPS = 24
CASES = {
    "nobody": ((), None),
    "data 3 0.02": ((3,), "data_wait"),
    "forward 0 0.02": ((0,), "forward"),
    "checkpoint 1 0.02": ((1,), "other"),
    "backward 2 0.02": ((2,), "backward"),
}


def facts(case: str) -> list[Facts]:
    return [
        Facts(
            Who(rank["rank"], "node0", 100 + rank["rank"]),
            steps=columns([{**STEP, **_known(zip(STEPS, row, strict=True))} for row in rank["steps"]]),
            recent=columns([{**CALL, **dict(zip(CALLS, row[:5], strict=True))} for row in rank["recent"]]),
        )
        for rank in RECORDED[case]
    ]


def _known(row: object) -> dict[str, object]:
    return {name: float("nan") if value is None else value for name, value in row}  # type: ignore[attr-defined]


def verdict_on(told: list[Facts]) -> Verdict:
    return WAYS["step"].compare(told, NUM_STEPS).verdict


@pytest.mark.parametrize("case", CASES)
def test_the_slow_rank_and_its_phase_are_named(case: str) -> None:
    ranks, where = CASES[case]

    verdict = verdict_on(facts(case))

    assert verdict.ranks == ranks, verdict.sentence
    assert verdict.where in (where, "forward or other") if ranks else verdict.state in ("nobody", "rotates")
    assert 10 <= verdict.num_steps <= NUM_STEPS


@pytest.mark.parametrize("case", [case for case in CASES if case != "nobody"])
def test_each_pair_of_ranks_tells_as_well(case: str) -> None:
    (slow,), _ = CASES[case]
    told = facts(case)
    for other in {0, 1, 2, 3} - {slow}:
        verdict = verdict_on([told[slow], told[other]])

        assert verdict.ranks == (slow,), verdict.sentence


def test_no_other_rank_is_named() -> None:
    for case, (ranks, _) in CASES.items():
        verdict = verdict_on([fact for fact in facts(case) if fact.who.rank not in ranks])

        assert verdict.ranks == (), (case, verdict.sentence)
