"""Readers of the graphs of losses, and the wait for one.

The training thread calls them before a backward; the thread that asks waits for a step and a half at most, one second
if there is none.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any, Protocol

from ..torch import loaded
from .host_values import is_readable

__all__ = ["GraphReader", "read_losses", "saved_tensor"]

WAIT_S, POLL_S = 1.0, 0.005
#: The steps that are looked at: a whole one, and the rest of the one under way.
NUM_STEPS = 2
_one_at_a_time = allocate_lock()


class GraphReader(Protocol):
    """Reads the graphs of losses on the training thread."""

    num_losses: int

    def note(self, loss: Any, plain_grads: int = 0) -> None:
        """Note what a loss is made of, before the backward that takes its graph apart, and how often
        `torch.autograd.grad` was called without `create_graph` since the backward before."""


def read_losses(readers: list[GraphReader], reader: GraphReader, most: int, num_steps: Callable[[], int]) -> list[str]:
    """Have the training thread, which calls `readers`, read up to `most` losses. Return why none was read."""
    if loaded("torch.autograd") is None:
        return ["the target has not imported torch"]
    if not _one_at_a_time.acquire(timeout=2 * WAIT_S):
        return ["others ask for the same: ask again"]
    try:
        readers.append(reader)
        deadline, last = monotonic() + WAIT_S, num_steps() + NUM_STEPS
        while monotonic() < deadline and reader.num_losses < most and num_steps() < last:
            sleep(POLL_S)
    finally:
        readers.remove(reader)
        _one_at_a_time.release()
    return [] if reader.num_losses else ["no backward has begun meanwhile"]


def saved_tensor(node: Any, name: str, is_plain: Callable[[object], bool]) -> Any:
    """Return a tensor that a node has saved, if it is one of torch's own class and not kept by somebody's hook."""
    saved = getattr(getattr(node, f"_raw_saved_{name}", None), "data", None)
    return saved if is_plain(saved) and is_readable(saved) else None
