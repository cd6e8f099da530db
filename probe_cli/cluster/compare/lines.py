"""The job's line in which a rank takes the time that its peers do not, by stacks sampled of both at the same time."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Place", "line_text", "slow_line"]

#: What was called, or the job's own function; and the job's line: ("torch.save", "train.py:88").
Place = tuple[str, str]
#: The least part of the time that a line must take beyond what it takes on a peer, and of the samples that it takes.
MIN_EXCESS, MIN_SAMPLES = 0.05, 5
#: What a call is for, where its name tells.
_MEANS = {"torch.save": "saves a checkpoint", "torch.load": "loads a checkpoint"}


def slow_line(mine: Mapping[Place, int], peer: Mapping[Place, int]) -> Place | None:
    """The line that takes more of the samples of `mine` than of `peer`, by most; None where no line stands out."""
    num_mine, num_peer = sum(mine.values()), sum(peer.values())
    if not num_mine or not num_peer:
        return None
    excess = {place: count / num_mine - peer.get(place, 0) / num_peer for place, count in mine.items()}
    top = max(excess, key=lambda place: excess[place])
    return top if excess[top] >= MIN_EXCESS and mine[top] >= MIN_SAMPLES else None


def line_text(place: Place) -> str:
    """`while it saves a checkpoint (torch.save at train.py:88)`, `at load in train.py:41`."""
    what, where = place
    means = _MEANS.get(what)
    return f"while it {means} ({what} at {where})" if means else f"in {what} at {where}"
