"""A language model whose attention sees the tokens that it is to predict."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def attentions(*sees_later: bool | None, **other: object) -> dict[str, list[dict[str, object]]]:
    row = {"backward_call": 0, "operation": "Softmax", "queries": 16, "keys": 16, "tokens": "4x16", "next_tokens": 1.0}
    return {"torch.attentions": [{**row, "sees_later": one, **other} for one in sees_later]}


def test_a_model_without_a_causal_mask_is_named(judged: Judged) -> None:
    (found,) = judged("attention-not-causal", attentions(True, True))

    assert found.sentence.startswith("the model sees the tokens that it is to predict")
    assert found.evidence == (
        "100 % of the targets are the token after that of their position, of tokens 4x16",
        "in all of 2 attentions over them the first position sees the last",
    )


@pytest.mark.parametrize(
    "tables",
    [
        attentions(False, False),
        attentions(True, False),  # an encoder with a decoder
        attentions(True, next_tokens=0.03),  # targets are masked tokens, or classes
    ],
)
def test_causal_models_and_those_that_may_see_all_are_fine(
    judged: Judged, tables: dict[str, list[dict[str, object]]]
) -> None:
    assert judged("attention-not-causal", tables) == []


@pytest.mark.parametrize(
    "tables",
    [
        {"torch.attentions": []},
        attentions(True, next_tokens=None),  # tokens on a device
        attentions(True, None),
        attentions(True, queries=8, keys=8),  # over heads, not over positions
    ],
)
def test_without_masks_and_tokens_there_is_nothing_to_judge(
    judged: Judged, tables: dict[str, list[dict[str, object]]]
) -> None:
    with pytest.raises(NotApplicable):
        judged("attention-not-causal", tables)
