"""Steps that get the first batch each time."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import Certainty, NotApplicable

from .conftest import Judged, Steps, Tables


def loader(steps: Steps, **others: object) -> Tables:
    row = {"place": "local `loader` of main()", "sampler": "SequentialSampler", "batch_size": 8, "passes": 100,
           "whole_passes": 0, "batches": 100, "samples": 512}  # fmt: skip
    return {"torch.dataloaders": [{**row, **others}], "python.steps": steps(100, batch_size=8)}


def test_passes_that_are_begun_in_each_step_and_never_ended_are_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("first-batch-only", loader(steps))

    assert found.where == "local `loader` of main()"
    assert "100 passes over the loader were begun" in found.evidence[0]
    (unsure,) = judged("first-batch-only", loader(steps, samples=None))
    assert (found.certainty, unsure.certainty) == (Certainty.LIKELY, Certainty.POSSIBLE)


@pytest.mark.parametrize(
    "fine",
    [
        {"sampler": "RandomSampler"},
        {"samples": 8},  # all the data in one batch, begun anew
        {"whole_passes": 100},  # all the data in one batch
        {"batches": 400},
        {"passes": 12, "batches": 12},
        {"passes": 30, "batches": 30},  # of a second loader, now and then
    ],
)
def test_shuffled_whole_and_rare_passes_are_fine(judged: Judged, steps: Steps, fine: dict[str, object]) -> None:
    assert judged("first-batch-only", loader(steps, **fine)) == []


def test_without_a_pass_there_is_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("first-batch-only", loader(steps, passes=0))
