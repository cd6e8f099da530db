"""The attentions of a loss, and whether they see later positions, noted from its graph before a backward.

Only while somebody waits for it: a walk over at most 4,000 nodes, 2 µs each, on the training thread. Of masks and
weights at most 8 values are read, of tokens and of the targets of cross_entropy at most 8 rows, all from a CPU's memory
and past the hooks that a checkpoint puts on what it saves: none of its work is done again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .graph_reader import GraphReader, saved_tensor
from .host_values import is_readable, rows_of, start_of, value_at

__all__ = ["Attention", "Attentions", "Tokens"]

MAX_LOSSES, MAX_NODES, MAX_SAMPLES = 2, 4_000, 8
_FUSED, _SOFTMAXES = "ScaledDotProduct", ("SoftmaxBackward0", "SafeSoftmaxBackward0")
_FEWEST_POSITIONS = 4


class Attention(NamedTuple):
    """One of a loss: `sees_later` says whether the first position sees the last; None where that is not known."""

    backward_call: int
    operation: str
    queries: int
    keys: int
    sees_later: bool | None


class Tokens(NamedTuple):
    """Token numbers that an embedding was given, or the targets of a cross_entropy; `rows` are their first ones."""

    backward_call: int
    is_target: bool
    shape: tuple[int, ...]
    rows: tuple[bytes, ...]


class Attentions(GraphReader):
    """The attentions and the tokens of the losses that backward is called on while somebody waits for them."""

    def __init__(self, is_plain: Callable[[object], bool]) -> None:
        self.attentions: list[Attention] = []
        self.tokens: list[Tokens] = []
        self.num_losses = 0
        self._is_plain = is_plain

    def note(self, loss: Any, plain_grads: int = 0) -> None:
        """Note the attentions of a loss, those next to it first."""
        if self.num_losses == MAX_LOSSES:
            return
        waiting = deque([loss.grad_fn] if loss.grad_fn is not None else [])
        seen = set(waiting)
        while waiting and len(seen) < MAX_NODES:
            node = waiting.popleft()
            self._note(node)
            above = {one for one, _ in node.next_functions if one is not None} - seen
            seen |= above
            waiting += above
        self.num_losses += 1

    def _note(self, node: Any) -> None:
        name = type(node).__name__
        if type(node).__module__ != "builtins":
            return  # a function of the job's own
        if name.startswith(_FUSED) or name in _SOFTMAXES:
            self.attentions += self._attention(node, name)
        elif name in ("NllLossBackward0", "NllLoss2DBackward0", "EmbeddingBackward0"):
            is_target = name != "EmbeddingBackward0"
            found = self._saved(node, "target" if is_target else "indices")
            if found is not None and str(found.dtype) == "torch.int64":
                rows = start_of(found) if found.dim() == 1 else rows_of(found)
                self.tokens.append(Tokens(self.num_losses, is_target, tuple(found.shape), rows))

    def _attention(self, node: Any, name: str) -> Iterator[Attention]:
        """Yield a row for a call of torch's own attention, or for a softmax over pairs of positions."""
        if name.startswith(_FUSED):
            query, key = self._saved(node, "query"), self._saved(node, "key")
            shape = () if query is None or key is None else (query.shape[-2], key.shape[-2])
            sees_later = self._is_open(node) if shape else None
        else:
            result = self._saved(node, "result")
            shape = () if result is None or result.dim() < 3 else tuple(result.shape[-2:])
            sees_later = _at_last(result, bool) if shape else None
        if shape and min(shape) >= _FEWEST_POSITIONS:
            yield Attention(self.num_losses, name.partition("Backward")[0], *shape, sees_later)

    def _is_open(self, node: Any) -> bool | None:
        """Say whether the first position sees the last in a call of torch's own attention."""
        if getattr(node, "_saved_is_causal", None) is not False:
            return False
        for name in ("attn_mask", "attn_bias"):
            if hasattr(node, f"_raw_saved_{name}"):
                mask = getattr(node, f"_raw_saved_{name}").data
                if mask is None:
                    return True
                if not self._is_plain(mask) or not is_readable(mask):
                    return None
                is_open = bool if str(mask.dtype) == "torch.bool" else _is_added_little
                return _at_last(mask, is_open)
        return True  # a kernel that takes no mask

    def _saved(self, node: Any, name: str) -> Any:
        return saved_tensor(node, name, self._is_plain)


def _is_added_little(value: float) -> bool:
    """Return whether what a mask adds to a score leaves it: others add -inf, the least number of a type, or -1e4."""
    return value > -1_000


def _at_last(values: Any, is_open: Callable[[float], bool]) -> bool | None:
    """Say whether the value for the first query and the last key is open, in any of the first samples.

    `values` has a row for each query and a column for each key, and before them samples and heads.
    """
    if values.dim() < 2 or values.shape[-2] == 1:
        return True  # the same for all queries
    before = [(0,) * (values.dim() - 2)]
    if before[0]:
        before = [(at, *before[0][1:]) for at in range(min(values.shape[0], MAX_SAMPLES))]
    found = [value_at(values, (*place, 0, values.shape[-1] - 1)) for place in before]
    return None if None in found else any(is_open(one) for one in found if one is not None)
