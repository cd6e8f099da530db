"""The attentions of the job's losses, whether they see later positions, and whether the targets are the next tokens,
for `torch.attentions`.

The training thread notes them before a backward (steps/attentions.py); the thread that asks waits for it, and compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from struct import unpack
from typing import Any

from ..source import Recorder
from ..steps.attentions import MAX_LOSSES, Attentions, Tokens
from ..steps.graph_reader import read_losses
from ..steps.host_values import ROW

__all__ = ["answer"]

READS = True
COLUMNS = ("backward_call", "operation", "queries", "keys", "sees_later", "tokens", "next_tokens")
#: What torch's losses ignore among their targets.
_IGNORED = -100


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row per attention."""
    found = Attentions(lambda value: recorder.device.is_plain(value))  # which is known with torch alone
    notes = read_losses(recorder.step.graph_readers, found, MAX_LOSSES, lambda: recorder.num_steps)
    of_each = {call: _texts([one for one in found.tokens if one.backward_call == call]) for call in range(MAX_LOSSES)}
    rows = [[*one, *of_each[one.backward_call]] for one in found.attentions]
    return {"columns": COLUMNS, "rows": rows, "notes": notes if rows or notes else ["no loss has an attention"]}


def _texts(noted: list[Tokens]) -> list[object]:
    """Return the shape of the tokens whose next ones the targets are most, and which part; of others NULL."""
    compared = [
        (part, "x".join(map(str, tokens.shape)))
        for target in noted
        if target.is_target
        for tokens in noted
        if not tokens.is_target
        for part in _next_part(tokens, target)
    ]
    if compared:
        part, shape = max(compared)
        return [shape, part]
    return [next(("x".join(map(str, one.shape)) for one in noted if not one.is_target), None), None]


def _next_part(tokens: Tokens, target: Tokens) -> Iterator[float]:
    """Yield which part of the targets is the token after that of their position, if their shapes fit."""
    if len(tokens.shape) != 2 or not tokens.rows or not target.rows or tokens.shape[1] > ROW:
        return
    num, length = tokens.shape
    values = [value for row in target.rows for value in unpack(f"{len(row) // 8}q", row)]
    # All positions, or without the last one, whose next token is not there.
    width = next((one for one in (length, length - 1) if num * one == prod(target.shape)), 0)
    if not width or width > ROW:
        return
    pairs = [
        (value, token)
        for at, row in enumerate(tokens.rows)
        for value, token in zip(values[at * width : (at + 1) * width], unpack(f"{length}q", row)[1:])
        if value != _IGNORED
    ]
    if pairs:
        yield sum(value == token for value, token in pairs) / len(pairs)
