"""A model that is trained past its DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps

WRAPPER = {"module": "DistributedDataParallel", "class": "DistributedDataParallel", "depth": 0, "place": "local `net`"}


def rank(steps: Steps, called: str = "Linear", num: int = 100, **others: Any) -> dict[str, Any]:
    spans = [{"step": step, "module": called, "stage": "backward"} for step in range(0, num, 10)]
    return {"python.steps": steps(num), "torch.modules": [WRAPPER], "python.torch_trace": spans, **others}


def test_ranks_that_never_call_the_wrapper_are_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("ddp-bypassed", rank(steps), rank(steps))

    assert found.ranks == (0, 1)
    assert found.where == "local `net`"
    assert found.evidence[0] == "in 10 sampled steps the wrapper was never called, Linear inside it was"


def test_one_that_is_called_and_gradients_that_are_averaged_by_hand_are_fine(judged: Judged, steps: Steps) -> None:
    by_hand = {"python.collectives": [{"step": 5, "op": "all_reduce", "phase": "other", "bytes": 4096}]}

    assert judged("ddp-bypassed", *(rank(steps, called="DistributedDataParallel") for _ in range(2))) == []
    assert judged("ddp-bypassed", *(rank(steps, **by_hand) for _ in range(2))) == []


def test_without_a_wrapper_or_steps_nothing_is_judged(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("ddp-bypassed", *(rank(steps, **{"torch.modules": []}) for _ in range(2)))
    with pytest.raises(NotApplicable):
        judged("ddp-bypassed", rank(steps))
    with pytest.raises(NoEvidence):
        judged("ddp-bypassed", *(rank(steps, num=9) for _ in range(2)))
