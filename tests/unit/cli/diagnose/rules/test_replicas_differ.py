"""Replicas with different weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps, Tables


def rank(steps: Steps, checksum: float, since: int = 0, role: dict[str, Any] | None = None, **others: Any) -> Tables:
    sums = [
        {"step": step, "checksum": checksum if step >= since else 7.0, "parameters": 8} for step in range(0, 100, 20)
    ]
    return {
        "python.replicas": sums,
        "python.steps": steps(100, counted=True),
        "python.roles": [{"dp": 0, **(role or {})}],
        **others,
    }


def test_a_rank_with_other_weights_than_the_others_is_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("replicas-differ", rank(steps, 1.0), rank(steps, 2.0, since=40), rank(steps, 1.0))

    assert found.ranks == (1,)


def test_steps_after_different_all_reduces_are_not_the_same_step(judged: Judged, steps: Steps) -> None:
    """In join() a rank without data follows the all_reduces of the others, and ends no steps."""

    def after(ahead: int) -> dict[str, Any]:
        calls = [
            {"step": step, "seq": 2 * step + ahead, "group": "0", "op": "all_reduce", "phase": "backward"}
            for step in range(100)
        ]
        return {"python.collectives": calls}

    with pytest.raises(NotApplicable, match="join"):
        judged("replicas-differ", rank(steps, 1.0, **after(0)), rank(steps, 2.0, **after(26)))
    assert judged("replicas-differ", rank(steps, 1.0, **after(0)), rank(steps, 2.0, **after(0)))
    assert judged("replicas-differ", rank(steps, 1.0, **after(0)), rank(steps, 2.0)), "the numbers of one are unknown"


def test_steps_that_are_counted_from_the_attach_are_known_by_their_all_reduce(judged: Judged, steps: Steps) -> None:
    def plain(checksum: float, ahead: int) -> Tables:
        """Of SGD: this rank was attached to `ahead` steps later."""
        calls = [
            {"step": step, "seq": 3 * (step + ahead), "group": "0", "op": "all_reduce", "phase": "backward"}
            for step in range(100)
        ]
        return rank(steps, checksum, **{"python.steps": steps(100, counted=False), "python.collectives": calls})

    (found,) = judged("replicas-differ", plain(1.0, 0), plain(2.0, 20))

    assert found.evidence[0] == "2 different checksums on 2 ranks after step 80; 4 of 4 common steps differ"
    assert judged("replicas-differ", plain(1.0, 0), plain(1.0, 20)) == []
    with pytest.raises(NoEvidence, match="ask again later"):
        judged("replicas-differ", plain(1.0, 0), plain(2.0, 7))


def test_ranks_that_average_now_and_then_differ_in_between(judged: Judged, steps: Steps) -> None:
    def every(num: int) -> dict[str, Any]:
        usual = {"op": "all_reduce", "phase": "other", "group": "0", "bytes": 4096}
        return {"python.collectives": [{**usual, "step": step, "seq": step} for step in range(0, 100, num)]}

    assert judged("replicas-differ", rank(steps, 1.0, **every(1)), rank(steps, 2.0, **every(1)))
    with pytest.raises(NotApplicable, match="local SGD"):
        judged("replicas-differ", rank(steps, 1.0, **every(32)), rank(steps, 2.0, **every(32)))


def test_equal_weights_and_those_of_other_stages_are_fine(judged: Judged, steps: Steps) -> None:
    stages = [rank(steps, float(at), role={"pp": at}) for at in range(2)]

    assert judged("replicas-differ", rank(steps, 1.0), rank(steps, 1.0)) == []
    assert judged("replicas-differ", *stages) == []


def test_sharded_models_and_steps_of_unlike_numbers_are_not_judged(judged: Judged, steps: Steps) -> None:
    sharded = {"python.collectives": [{"step": 5, "op": "reduce_scatter", "phase": "backward"}]}
    with pytest.raises(NotApplicable):
        judged("replicas-differ", rank(steps, 1.0), rank(steps, 2.0, **sharded))
    with pytest.raises(NotApplicable):
        judged("replicas-differ", *(rank(steps, at, **{"python.steps": steps(9, counted=False)}) for at in (1.0, 2.0)))


@pytest.mark.parametrize("op", ["all_to_all", "all_reduce"])
def test_ranks_that_exchange_activations_are_replicas_only_where_their_roles_say_so(
    op: str, judged: Judged, steps: Steps
) -> None:
    calls = [{"step": 5, "op": op, "phase": "forward"}]
    calls += [{"step": step, "op": "all_reduce", "phase": "other"} for step in range(100)]
    by_hand = {"python.collectives": calls, "python.roles": []}

    with pytest.raises(NotApplicable):
        judged("replicas-differ", rank(steps, 1.0, **by_hand), rank(steps, 2.0, **by_hand))
    known = {"python.collectives": calls}
    assert judged("replicas-differ", rank(steps, 1.0, **known), rank(steps, 2.0, **known))


@pytest.mark.parametrize(("size", "num_bytes", "is_judged"), [(4, 4096, True), (2, 4096, False), (2, 8, True)])
def test_groups_of_some_ranks_may_have_layers_of_their_own(
    size: int, num_bytes: int, is_judged: bool, judged: Judged, steps: Steps
) -> None:
    def job(checksum: float) -> Tables:
        usual = {"op": "all_reduce", "phase": "other"}
        calls = [{**usual, "step": step, "group": "0", "bytes": 4096} for step in range(100)]
        calls.append({**usual, "step": 5, "group": "3", "bytes": num_bytes})
        groups = [{"group": "0", "size": 4, "world_size": 4}, {"group": "3", "size": size, "world_size": 4}]
        others = {"python.collectives": calls, "python.groups": groups, "python.roles": []}
        return rank(steps, checksum, **others)

    if is_judged:
        assert judged("replicas-differ", *map(job, (1.0, 2.0, 1.0, 1.0)))
        return
    with pytest.raises(NotApplicable, match="groups of some ranks"):
        judged("replicas-differ", *map(job, (1.0, 2.0, 1.0, 1.0)))


def test_a_few_numbers_before_a_forward_are_no_exchange(judged: Judged, steps: Steps) -> None:
    """A log now and then, or whether all ranks go on, in each step."""
    averages = [{"step": step, "op": "all_reduce", "phase": "other", "bytes": 4096} for step in range(100)]

    def told(size: int, at: Iterable[int]) -> dict[str, list[dict[str, object]]]:
        sums = [{"step": step, "op": "all_reduce", "phase": "forward", "bytes": size} for step in at]
        return {"python.collectives": [*averages, *sums], "python.roles": []}

    for few in (told(256, [5]), told(4, range(100))):
        assert judged("replicas-differ", rank(steps, 1.0, **few), rank(steps, 2.0, **few))
    many = told(256, range(100))
    with pytest.raises(NotApplicable):
        judged("replicas-differ", rank(steps, 1.0, **many), rank(steps, 2.0, **many))


def test_a_gather_when_the_model_is_made_does_not_make_it_sharded(judged: Judged, steps: Steps) -> None:
    made = {"python.collectives": [{"step": 0, "op": "all_gather", "phase": None}]}

    assert judged("replicas-differ", rank(steps, 1.0, **made), rank(steps, 2.0, **made))


def test_one_rank_or_one_answer_is_not_judged(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("replicas-differ", rank(steps, 1.0))
    with pytest.raises(NoEvidence):
        judged("replicas-differ", rank(steps, 1.0), {}, world_size=2)
