"""Ranks run with different versions, settings or code."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import Certainty, NoEvidence, NotApplicable

from .conftest import Judged, Steps


def env(version: str) -> dict[str, list[dict[str, object]]]:
    return {"process.env": [{"kind": "version", "name": "torch", "value": version}]}


def test_the_odd_rank_is_named(judged: Judged) -> None:
    (found,) = judged("ranks-differ", env("2.13"), env("2.13"), env("2.12"))

    assert (found.where, found.ranks) == ("torch", (2,))


def test_equal_ranks_are_fine(judged: Judged) -> None:
    assert judged("ranks-differ", env("2.13"), env("2.13")) == []


def test_one_rank_has_nothing_to_differ_from_and_silence_is_no_evidence(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("ranks-differ", env("2.13"))
    with pytest.raises(NoEvidence):
        judged("ranks-differ", env("2.13"), {})


def test_a_variable_that_is_set_on_one_rank_only_is_named_and_one_that_names_a_rank_is_not(judged: Judged) -> None:
    set_ = {"kind": "variable", "name": "NCCL_ALGO", "value": "Tree"}
    own = {"kind": "variable", "name": "CUDA_VISIBLE_DEVICES", "value": "1"}

    (found,) = judged(
        "ranks-differ", env("2.13"), env("2.13"), {"process.env": [*env("2.13")["process.env"], set_, own]}
    )

    assert (found.where, found.ranks) == ("NCCL_ALGO", (2,))
    assert "not set" in found.evidence[0]


def test_one_odd_seed_is_named_and_a_seed_for_each_rank_is_usual(judged: Judged) -> None:
    def seeded(*seeds: str) -> list[dict[str, list[dict[str, object]]]]:
        return [{"process.env": [{"kind": "seed", "name": "torch.initial_seed()", "value": seed}]} for seed in seeds]

    (found,) = judged("ranks-differ", *seeded("1", "1", "7", "1"))

    assert (found.ranks, found.certainty) == ((2,), Certainty.POSSIBLE)
    assert judged("ranks-differ", *seeded("1", "2", "3", "4")) == []


def test_the_seed_of_a_rank_that_does_not_train_is_left_out(judged: Judged, steps: Steps) -> None:
    def rank(seed: str, num_steps: int) -> dict[str, list[dict[str, object]]]:
        told = [{"kind": "seed", "name": "torch.initial_seed()", "value": seed}]
        return {"process.env": told, "python.steps": steps(num_steps)}

    ranks = [rank("0", 20), rank("0", 20), rank("0", 20)]

    assert judged("ranks-differ", *ranks, rank("7", 0)) == []
    assert len(judged("ranks-differ", *ranks, rank("7", 20))) == 1
