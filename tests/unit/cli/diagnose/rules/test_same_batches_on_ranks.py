"""Data-parallel ranks that train on the same samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps, Tables

Rank = Callable[..., Tables]


@pytest.fixture
def rank(steps: Steps) -> Rank:
    """A rank of DDP whose losses are those of `seed`, and whose loader has a sampler of one rank."""

    def make(seed: int, sampler: str = "RandomSampler", num: int = 100, **others: Any) -> Tables:
        calls = [{"step": step, "op": "all_reduce", "phase": "backward", "bytes": 4096} for step in range(num)]
        return {
            "python.steps": steps(num, loss=lambda step: 1.0 / (7 + step + 1000 * seed)),
            "python.collectives": calls + others.pop("calls", []),
            "torch.dataloaders": [{"place": "local `loader` of main()", "sampler": sampler, "batches": 50}],
            **others,
        }

    return make


def test_ranks_with_equal_losses_are_named(judged: Judged, rank: Rank) -> None:
    (found,) = judged("same-batches-on-ranks", rank(1), rank(2), rank(1), rank(1))

    assert found.ranks == (0, 2, 3)
    assert found.share == pytest.approx(2 / 3)
    assert found.where == "local `loader` of main()"
    assert found.evidence[0].startswith("100 losses are the same")


def test_the_most_ranks_that_are_alike_are_named(judged: Judged, rank: Rank) -> None:
    (found,) = judged("same-batches-on-ranks", *(rank(seed) for seed in (1, 2, 3, 2, 1, 2)))

    assert found.ranks == (1, 3, 5)


def test_other_losses_and_losses_of_one_value_are_fine(judged: Judged, rank: Rank, steps: Steps) -> None:
    assert judged("same-batches-on-ranks", rank(1), rank(2)) == []
    with pytest.raises(NoEvidence, match="fewer than 20 different losses"):
        judged("same-batches-on-ranks", *(rank(1, **{"python.steps": steps(100, loss=0.0)}) for _ in range(2)))


@pytest.mark.parametrize(("parts", "share"), [([(0, 1), (0, 1)], "all of the data"), ([(1, 4), (1, 4)], "part 1 of 4")])
def test_a_sampler_that_was_told_a_wrong_rank_is_told(
    judged: Judged, rank: Rank, parts: list[tuple[int, int]], share: str
) -> None:
    (found,) = judged("same-batches-on-ranks", *(rank(1, **cut(*part)) for part in parts))

    assert found.evidence[1].endswith(f"a DistributedSampler, which gives each of them {share}")


def given(rank: int, **shared: bool) -> Tables:
    """Calls of a model from the `rank`-th step on; each argument has the same values as on other ranks, or not."""
    rows = [
        {
            "module": "GPT",
            "name": name,
            "call": step,
            "read": 64,
            "distinct": 50,
            "checksum": step + rank * 1000 * (not is_shared),
        }
        for step in range(rank, rank + 6)
        for name, is_shared in shared.items()
    ]
    return {"torch.dataloaders": [], "torch.arguments": rows}


def test_ranks_whose_models_are_given_the_same_are_named_without_a_sampler(judged: Judged, rank: Rank) -> None:
    (found,) = judged("same-batches-on-ranks", *(rank(1, **given(at, tokens=True)) for at in range(3)))

    assert found.where == "tokens of GPT"
    assert found.evidence[1] == "the values of tokens of GPT that were read are the same in 4 calls"


def test_ranks_that_drop_at_random_are_named_by_what_they_are_given(judged: Judged, rank: Rank) -> None:
    asked = [rank(at, **given(at, tokens=True, output=False)) for at in range(3)]  # losses of their own
    other = rank(9, **given(3, tokens=False))

    (found,) = judged("same-batches-on-ranks", *asked, other)

    assert found.ranks == (0, 1, 2)
    assert found.evidence[0] == "their losses differ: what is random in the model does"


def test_a_common_validation_set_is_fine(judged: Judged, rank: Rank) -> None:
    def told(at: int) -> Tables:
        batches = given(0, images=True)["torch.arguments"]
        trained = given(at, tokens=False)["torch.arguments"] if at < 2 else []
        return {"torch.dataloaders": [], "torch.arguments": [*({**one, "module": None} for one in batches), *trained]}

    assert judged("same-batches-on-ranks", *(rank(at, **told(at)) for at in range(2))) == []
    assert judged("same-batches-on-ranks", *(rank(at, **told(at)) for at in range(2, 4))) == []


@pytest.mark.parametrize("seeds", [(1, 1), (1, 2)])
def test_noise_that_is_seeded_alike_is_not_the_data(judged: Judged, rank: Rank, seeds: tuple[int, int]) -> None:
    asked = [rank(seed, **given(at, noise=True, images=False)) for at, seed in enumerate(seeds)]

    assert judged("same-batches-on-ranks", *asked) == []


def test_positions_tell_nothing(judged: Judged, rank: Rank) -> None:
    positions = [
        {"module": "GPT", "name": "at", "call": at, "read": 64, "distinct": 64, "checksum": 7} for at in range(6)
    ]

    with pytest.raises(NotApplicable):
        judged(
            "same-batches-on-ranks", *(rank(1, **{"torch.dataloaders": [], "torch.arguments": positions}) for _ in "ab")
        )


def test_equal_losses_of_different_parts_are_of_one_common_loss(judged: Judged, rank: Rank) -> None:
    assert judged("same-batches-on-ranks", rank(1, **cut(0, 2)), rank(1, **cut(1, 2))) == []


def cut(part: int, parts: int) -> Tables:
    loader = {"place": "local `loader` of main()", "sampler": "DistributedSampler", "batches": 50}
    return {"torch.dataloaders": [{**loader, "sampler_rank": part, "sampler_replicas": parts}]}


def test_a_few_common_batches_are_fine(judged: Judged, rank: Rank, steps: Steps) -> None:
    mixed = {"python.steps": steps(100, loss=lambda step: 1.0 / (7 + step + (1000 if step % 3 else 0)))}

    assert judged("same-batches-on-ranks", rank(0), rank(0, **mixed)) == []


def test_losses_that_are_common_by_intention_are_not_judged(judged: Judged, rank: Rank) -> None:
    gathers = [{"step": step, "op": "all_gather", "phase": "other", "bytes": 4096} for step in range(9)]
    adds = [{"step": step, "op": "all_reduce", "phase": "forward", "bytes": 4096} for step in range(100)]

    for calls, why in ((gathers, "gather what they compute"), (adds, "exchange activations")):
        with pytest.raises(NotApplicable, match=why):
            judged("same-batches-on-ranks", rank(1, calls=calls), rank(1, calls=calls))
    roles = [{"python.roles": [{"dp": at, "tp": 0}]} for at in range(2)]
    assert judged("same-batches-on-ranks", *(rank(1, calls=adds, **role) for role in roles))
    parts = [{"python.roles": [{"dp": 0, "tp": at}]} for at in range(2)]
    assert judged("same-batches-on-ranks", *(rank(1, calls=adds, **role) for role in parts)) == []


@pytest.mark.parametrize(
    "loaders",
    [
        [],
        [{"place": "local `valid` of main()", "sampler": "SequentialSampler", "batches": 0}],
    ],
)
def test_without_a_loader_that_gives_all_of_the_data_nothing_is_judged(
    loaders: list[dict[str, object]], judged: Judged, rank: Rank
) -> None:
    with pytest.raises(NotApplicable, match="no loader"):
        judged("same-batches-on-ranks", rank(1, **{"torch.dataloaders": loaders}), rank(1))


def test_one_rank_and_a_job_that_has_just_begun_are_not_judged(judged: Judged, rank: Rank) -> None:
    with pytest.raises(NotApplicable, match="one rank"):
        judged("same-batches-on-ranks", rank(1))
    with pytest.raises(NoEvidence, match="fewer than two ranks"):
        judged("same-batches-on-ranks", rank(1), world_size=2)
    with pytest.raises(NoEvidence):
        judged("same-batches-on-ranks", rank(1, num=9), rank(1, num=9))
