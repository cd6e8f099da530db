"""The same on facts of real jobs: rows of tests/targets/straggling.py, four ranks on a busy machine of two cores.

`recorded.json` has for each case what `python.steps` and `torch.flight_recorder` had, as the queries of questions.py
gave it. The slow rank slept 20 ms a step.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from probe_cli.cluster.compare.facts import Facts, Who
from probe_cli.cluster.compare.questions import FACTS
from probe_cli.cluster.compare.straggler import find

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())
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
            steps=FACTS["steps"].read(rank["steps"]),
            recent=FACTS["recent"].read(rank["recent"]),
        )
        for rank in RECORDED[case]
    ]


@pytest.mark.parametrize("case", CASES)
def test_the_slow_rank_is_named_by_its_collectives(case: str) -> None:
    ranks, where = CASES[case]

    verdict = find(facts(case), NUM_STEPS).verdict

    assert verdict.ranks == ranks, verdict.sentence
    assert verdict.where in (where, "forward or other" if where in ("forward", "other") else where)
    assert verdict.state == ("stands out" if ranks else "nobody")
    assert verdict.evidence == "collectives"
    assert 20 <= verdict.num_steps <= NUM_STEPS


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("backward")])
def test_without_collectives_by_its_phases(case: str) -> None:
    ranks, where = CASES[case]

    verdict = find([replace(fact, recent=()) for fact in facts(case)], NUM_STEPS).verdict

    assert verdict.ranks == ranks, verdict.sentence
    assert verdict.where in (where, "forward or other" if where in ("forward", "other") else where)


@pytest.mark.parametrize("case", [case for case in CASES if case != "nobody"])
def test_each_pair_of_ranks_tells_as_well(case: str) -> None:
    (slow,), _ = CASES[case]
    told = facts(case)
    for other in {0, 1, 2, 3} - {slow}:
        verdict = find([told[slow], told[other]], NUM_STEPS).verdict

        assert verdict.ranks == (slow,), verdict.sentence


def test_of_the_others_nobody_stands_out() -> None:
    for case, (ranks, _) in CASES.items():
        verdict = find([fact for fact in facts(case) if fact.who.rank not in ranks], NUM_STEPS).verdict

        assert verdict.state == "nobody", (case, verdict.sentence)
