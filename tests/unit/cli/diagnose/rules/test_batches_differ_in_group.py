"""Ranks of one tensor-parallel group that read different batches."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Tables

PLACE = "local `loader` of main() at train.py:40"


def job(parts: list[tuple[int, int]], *, size: int = 2048, averages: bool = True, steps: int = 30) -> list[Tables]:
    """Four ranks, two in a group that adds up activations and two in one that averages gradients."""
    ranks = []
    for rank, (part, num) in enumerate(parts):
        tp, dp = rank // 2, rank % 2
        calls: list[dict[str, Any]] = []
        for step in range(steps):
            calls += [{"step": step, "group": f"tp{tp}", "op": "all_reduce", "phase": "forward", "bytes": size}] * 2
            if averages:
                calls.append({"step": step, "group": f"dp{dp}", "op": "all_reduce", "phase": "other", "bytes": 1 << 16})
        usual = {"size": 2, "world_size": 4}
        groups = [
            {**usual, "group": f"tp{tp}", "ranks": f"{2 * tp}-{2 * tp + 1}"},
            {**usual, "group": f"dp{dp}", "ranks": f"{dp}-{dp + 2}:2"},
        ]
        loader = {"place": PLACE, "sampler_rank": part, "sampler_replicas": num, "batches": 9}
        ranks.append({"python.collectives": calls, "python.groups": groups, "torch.dataloaders": [loader]})
    return ranks


BY_JOB, BY_REPLICA = [(0, 4), (1, 4), (2, 4), (3, 4)], [(0, 2), (0, 2), (1, 2), (1, 2)]


def test_a_sampler_that_cuts_by_all_ranks_is_named(judged: Judged) -> None:
    (found,) = judged("batches-differ-in-group", *job(BY_JOB))

    assert found.ranks == (0, 1)
    assert found.where == PLACE
    assert "rank 0 part 0 of 4, rank 1 part 1 of 4" in found.evidence[0]


def test_the_same_part_for_a_group_is_fine(judged: Judged) -> None:
    assert judged("batches-differ-in-group", *job(BY_REPLICA)) == []


@pytest.mark.parametrize("told", [{"size": 8}, {"averages": False}, {"steps": 5}])
def test_a_few_numbers_or_one_kind_of_group_are_no_shared_layers(judged: Judged, told: dict[str, Any]) -> None:
    """Batch norm over all replicas adds up in forward in the very group that averages."""
    with pytest.raises(NotApplicable):
        judged("batches-differ-in-group", *job(BY_JOB, **told))


def test_one_rank_of_a_group_is_no_evidence(judged: Judged) -> None:
    with pytest.raises(NoEvidence):
        judged("batches-differ-in-group", job(BY_JOB)[0], world_size=4)
