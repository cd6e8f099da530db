"""Labels that are shifted by the job, and once more by the model."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def calls(following: float | None, same: float | None, **other: str) -> dict[str, list[dict[str, object]]]:
    row = {"module": "GPT2LMHeadModel", "library": "transformers", "name": "labels", **other}
    return {
        "torch.arguments": [{**row, "call": at, "next_of_first": following, "same_as_first": same} for at in range(3)]
    }


def test_labels_that_are_the_next_tokens_are_named(judged: Judged) -> None:
    (found,) = judged("labels-shifted-twice", calls(1.0, 0.02))

    assert found.sentence.startswith("the labels of GPT2LMHeadModel are the next tokens already")
    assert "100 % of the labels are the input of the next position, 2 % that of their own" in found.evidence[0]


@pytest.mark.parametrize(("following", "same"), [(0.02, 1.0), (1.0, 1.0), (0.1, 0.1)])
def test_labels_as_they_should_be_and_a_text_that_repeats_itself_are_fine(
    judged: Judged, following: float, same: float
) -> None:
    assert judged("labels-shifted-twice", calls(following, same)) == []


@pytest.mark.parametrize(
    "tables",
    [
        {},
        calls(1.0, 0.0, library="__main__"),  # a model of the job's own compares them as they are
        calls(1.0, 0.0, module="BertForMaskedLM"),
        calls(None, None),  # on a device
    ],
)
def test_other_models_have_nothing_to_judge(judged: Judged, tables: dict[str, list[dict[str, object]]]) -> None:
    with pytest.raises(NotApplicable):
        judged("labels-shifted-twice", tables)
