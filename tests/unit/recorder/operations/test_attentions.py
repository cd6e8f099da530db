"""The attentions of losses: whether they see later positions, and whether the targets are the next tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from probe_agent.recorder.operations import attentions  # noqa: E402
from probe_agent.recorder.steps.attentions import Attentions  # noqa: E402

pytestmark = pytest.mark.torch

L = 8
TEXTS = torch.randint(0, 50, (3, L + 1))
INPUTS, NEXT = TEXTS[:, :-1], TEXTS[:, 1:]
EARLIER = torch.ones(L, L, dtype=torch.bool).tril()
embedding = nn.Embedding(50, 16)


def rows_of(loss: Any) -> list[dict[str, object]]:
    """Return the rows that a backward of a loss gives."""
    found = Attentions(lambda value: type(value) in (torch.Tensor, nn.Parameter))
    found.note(loss)
    texts = attentions._texts(found.tokens)
    return [dict(zip(attentions.COLUMNS, [*one, *texts], strict=True)) for one in found.attentions]


def loss_of(attend: Callable[[Any], Any], inputs: Any = INPUTS, targets: Any = NEXT) -> Any:
    heads = embedding(inputs).unflatten(2, (2, 8)).transpose(1, 2)
    hidden = attend(heads).transpose(1, 2).flatten(2)
    return functional.cross_entropy((hidden @ embedding.weight.T).flatten(0, 1), targets.flatten())


def by_hand(hide: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda heads: hide(heads @ heads.transpose(-2, -1) * 0.3).softmax(-1) @ heads


def fused(**how: Any) -> Callable[[Any], Any]:
    return lambda heads: functional.scaled_dot_product_attention(heads, heads, heads, **how)


INF = float("-inf")
CAUSAL = {
    "is_causal": fused(is_causal=True),
    "a mask of bool": fused(attn_mask=EARLIER),
    "a mask of numbers": fused(attn_mask=torch.zeros(L, L).masked_fill(~EARLIER, INF)),
    "a mask of the least number": fused(attn_mask=torch.zeros(L, L).masked_fill(~EARLIER, torch.finfo().min)),
    "a mask of bfloat16": lambda heads: fused(attn_mask=torch.zeros(L, L).masked_fill(~EARLIER, INF).bfloat16())(
        heads.bfloat16()
    ).float(),
    "dropout": fused(is_causal=True, dropout_p=0.1),
    "masked_fill": by_hand(lambda scores: scores.masked_fill(~EARLIER, INF)),
    "where": by_hand(lambda scores: torch.where(EARLIER, scores, torch.tensor(-1e9))),
    "added": by_hand(lambda scores: scores + torch.zeros(L, L).masked_fill(~EARLIER, INF)),
}
PADDING = torch.arange(L) < torch.tensor([[L], [5], [4]])
OPEN = {
    "no mask": fused(),
    "dropout": fused(dropout_p=0.1),
    "by hand": by_hand(lambda scores: scores),
    "a mask of the padding": fused(attn_mask=PADDING[:, None, None]),
    "a mask of the padding by hand": by_hand(lambda scores: scores.masked_fill(~PADDING[:, None, None], INF)),
}


@pytest.mark.parametrize("how", CAUSAL)
def test_attention_with_a_causal_mask_sees_nothing_later(how: str) -> None:
    (row,) = rows_of(loss_of(CAUSAL[how]))

    assert (row["queries"], row["keys"], row["sees_later"]) == (L, L, False)
    assert (row["tokens"], row["next_tokens"]) == (f"3x{L}", 1.0)


@pytest.mark.parametrize("how", OPEN)
def test_attention_without_one_does(how: str) -> None:
    (row,) = rows_of(loss_of(OPEN[how]))

    assert row["sees_later"] is True


@pytest.mark.parametrize(
    ("inputs", "targets", "part"),
    [
        (INPUTS, NEXT, 1.0),
        (INPUTS, INPUTS, 0.0),
        (INPUTS, NEXT.masked_fill(torch.arange(L) < 3, -100), 1.0),  # ignored ones do not count
        (TEXTS, torch.cat([NEXT, torch.full((3, 1), -100)], 1), 1.0),  # as transformers shifts labels
    ],
)
def test_the_targets_are_compared_with_the_next_tokens(inputs: Any, targets: Any, part: float) -> None:
    inputs, targets = inputs.clone(), targets.clone()
    if part == 0.0:
        inputs[:] = torch.arange(inputs.shape[1])
        targets[:] = torch.arange(inputs.shape[1])

    (row,) = rows_of(loss_of(fused(), inputs, targets))

    assert row["next_tokens"] == part


def test_targets_of_many_long_texts_are_read_in_part() -> None:
    texts = torch.randint(0, 50, (16, 401))

    (row,) = rows_of(loss_of(fused(is_causal=True), texts[:, :-1], texts[:, 1:]))

    assert (row["tokens"], row["next_tokens"]) == ("16x400", 1.0)


def test_nothing_that_a_checkpoint_would_run_again_is_read() -> None:
    runs = []

    def model() -> Any:
        runs.append(1)
        return loss_of(by_hand(lambda scores: scores))

    loss = checkpoint(model, use_reentrant=False)

    assert rows_of(loss) == []  # the weights are what a hook of the checkpoint has made of them
    assert len(runs) == 1
    loss.backward()
    assert len(runs) == 2


class ScaledDotProduct(torch.autograd.Function):
    """A function of the job's own that is named as torch's are."""

    @staticmethod
    def forward(ctx: Any, heads: Any) -> Any:
        return fused()(heads)

    @staticmethod
    def backward(ctx: Any, gradients: Any) -> Any:
        return gradients


def test_a_function_of_the_jobs_own_is_passed_over() -> None:
    assert rows_of(loss_of(ScaledDotProduct.apply)) == []


def test_samples_that_vmap_computes_together_are_read() -> None:
    def of_one(inputs: Any) -> Any:
        heads = embedding(inputs).unflatten(1, (2, 8)).transpose(0, 1)
        return functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).sum()

    rows = rows_of(torch.func.vmap(of_one)(INPUTS).sum())

    assert [row["sees_later"] for row in rows] == [False]


def test_a_loss_without_tokens_or_attention_has_no_row() -> None:
    assert rows_of(nn.Linear(4, 1)(torch.ones(2, 4)).sum()) == []
    assert rows_of(torch.ones((), requires_grad=True)) == []
    (row,) = rows_of(fused()(torch.randn(1, 2, 8, 4, requires_grad=True)).sum())
    assert (row["tokens"], row["next_tokens"]) == (None, None)
