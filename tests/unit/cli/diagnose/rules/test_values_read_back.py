"""The training thread reads values of tensors again and again."""

from __future__ import annotations

import pytest

from probe_agent.wire import Frame
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.sampling import Stack

from .conftest import Judged, Steps
from .looking import Told, looked

READS = Stack((Frame("accuracy", "/job/train.py", 88, 0, "python", "    right += output[at].item() > 0"),))
TRAINS = Stack((Frame("train", "/job/train.py", 80, 0, "python", "    loss = model(inputs).mean()"),))
SUSPECTED = Finding("", Certainty.SUSPECTED, cost_s=0.1, ranks=(0,))


def test_the_line_that_reads_is_named_with_its_share_and_cost() -> None:
    (found,) = looked(
        "values-read-back",
        Told(stacks_of_0=[READS] * 2 + [TRAINS] * 8, more_stacks_of_0=[READS] * 8 + [TRAINS] * 2),
        [SUSPECTED],
    )

    assert (found.share, found.cost_s) == (0.5, 0.05)
    assert found.where.startswith("accuracy (train.py:88)")


@pytest.mark.parametrize(("reads", "share"), [(20, 0.25), (2, None)])
def test_a_share_close_to_the_threshold_is_decided_by_more_stacks(reads: int, share: float | None) -> None:
    told = Told(
        stacks_of_0=[READS] * 2 + [TRAINS] * 8,
        more_stacks_of_0=[READS] * 2 + [TRAINS] * 12,
        yet_more_stacks_of_0=[READS] * reads + [TRAINS] * (72 - reads),
    )

    assert [one.share for one in looked("values-read-back", told, [SUSPECTED])] == ([share] if share else [])


def test_a_value_now_and_then_is_no_finding_and_a_thread_that_was_not_seen_no_evidence() -> None:
    assert (
        looked(
            "values-read-back", Told(stacks_of_0=[READS] + [TRAINS] * 9, more_stacks_of_0=[TRAINS] * 20), [SUSPECTED]
        )
        == []
    )
    with pytest.raises(NoEvidence, match="could not be read"):
        looked("values-read-back", Told(stacks_of_0=[]), [SUSPECTED])


def test_a_thread_that_was_never_seen_to_read_is_not_looked_at_any_longer() -> None:
    looked_once = Told(stacks_of_0=[TRAINS] * 12)  # which has no more to tell

    assert looked("values-read-back", looked_once, [SUSPECTED]) == []


def test_steps_that_are_all_backward_are_not_looked_at(judged: Judged, steps: Steps) -> None:
    assert judged("values-read-back", {"python.steps": steps(50, forward=0.001, backward=0.09)}) == []


def test_few_steps_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("values-read-back", {"python.steps": steps(5)})
