"""A hang in words: one sentence for each end of a chain, and the lines of evidence below it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from probe_cli.text import ranks_text, seconds

from .calls import Call, Frame, Rank
from .chain import Cause, Stop, Wait

__all__ = ["evidence", "is_library", "sentence", "still_in"]

#: Operations with one rank that sends to all, or receives from all: what ranks differ in is in no record of torch.
_WITH_ROOT = ("broadcast", "reduce", "gather", "scatter")
#: Folders of code that is not the job's own.
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "<")


def is_library(file: str) -> bool:
    """Return whether this source is not the job's own."""
    return any(folder in file for folder in _LIBRARIES)


def sentence(stop: Stop, ranks: Mapping[int, Rank]) -> str:
    """What is wrong, in one sentence."""
    wait = stop.wait
    call = f"{wait.op} {wait.seq} of {_group(wait, ranks)}"
    held = f"; {_num(len(stop.held_up), 'rank')} held up" if stop.held_up else ""
    if stop.cause is Cause.ABSENT:
        return (
            f"{_ranks(stop.ranks, 'has', 'have')} not come to {call},"
            f" in which {_ranks(wait.inside, 'waits', 'wait')}{held}"
        )
    if stop.cause is Cause.NO_PEER:
        other = "receive" if wait.op == "send" else "send"
        way = "to" if wait.op == "send" else "from"
        return (
            f"{_ranks(stop.ranks, 'has', 'have')} not called the {other} that answers rank {wait.inside[0]}'s"
            f" {wait.op} {way} rank {wait.peer} in {_group(wait, ranks)}{held}"
        )
    if stop.cause is Cause.MISMATCH:
        found = "; ".join(f"{_ranks(who, 'calls', 'call')} {what}" for what, who in stop.variants)
        fault = f"{_ranks(stop.ranks, 'differs', 'differ')}" if stop.ranks else "the ranks differ"
        if wait.peer is not None:
            ends = f"ranks {wait.inside[0]} and {wait.peer} differ in a send of {_group(wait, ranks)}"
            return f"{ends}: {found}{held}"
        if len(stop.variants) == 1:
            return f"the ranks send other amounts than they receive in {call}: {found}{held}"
        return f"{fault} in collective {wait.seq} of {_group(wait, ranks)}: {found}{held}"
    if stop.cause is Cause.CYCLE:
        links = "; ".join(f"{_ranks(link.inside, 'is', 'are')} in {_link(link, ranks)}" for link in stop.links)
        return f"ranks {ranks_text(stop.ranks)} wait for each other: {links}{held}"
    if stop.cause is Cause.DEVICE:
        return (
            f"the device of {_plain(stop.ranks)} has not begun {call}, which {_ranks(stop.ranks, 'has', 'have')} called"
            f" and other ranks have begun{held}"
        )
    if stop.cause is Cause.LEFT_BEHIND:
        return f"{_ranks(stop.ranks, 'is', 'are')} still in {call}, which the other ranks of the group have ended{held}"
    if stop.cause is Cause.UNSEEN:
        waiting = _ranks(wait.inside, "waits", "wait")
        whom = _plain(stop.ranks) if stop.ranks else "the other ranks of this group"
        return f"nothing is known of {whom}, for which {waiting} in {call}{held}"
    where = f"send or receive between ranks {wait.inside[0]} and {wait.peer}" if wait.peer is not None else call
    inside = _ranks(wait.inside, "is", "are")
    root = ", or they differ in its root (src, dst)" if wait.op in _WITH_ROOT else ""
    return f"{inside} in {where} and none has finished it: the network between them, or a device{root}{held}"


def still_in(stop: Stop, ranks: Mapping[int, Rank]) -> str | None:
    """Of ranks that have not come to a call: the one that they have not ended, though all have come to it."""
    calls = {rank: [call for call in ranks[rank].calls if not call.is_over] for rank in stop.ranks if rank in ranks}
    behind = {rank: open_calls[0] for rank, open_calls in calls.items() if open_calls}
    if stop.cause is not Cause.ABSENT or not behind:
        return None
    call = min(behind.values(), key=lambda call: call.called)
    inside = tuple(rank for rank, one in behind.items() if (one.group, one.seq) == (call.group, call.seq))
    root = ": they may differ in its root (src, dst)" if call.op in _WITH_ROOT else ""
    return f"{_ranks(inside, 'is', 'are')} still in {_call(call, ranks)}, which the others have ended{root}"


def evidence(stop: Stop, ranks: Mapping[int, Rank]) -> list[str]:
    """Where each rank named was last seen in a call, and from where those that wait called."""
    newest = max((call.called for rank in ranks.values() for call in rank.calls), default=0.0)
    lines = []
    for number in stop.ranks[:8]:
        if number not in ranks:
            continue
        calls = ranks[number].calls
        if not calls:
            lines.append(f"rank {number}: its dump has no call")
            continue
        last = calls[-1]
        done = "ended" if last.is_over else "not over"
        lines.append(
            f"rank {number}: its last call is {_call(last, ranks)} ({done}),"
            f" {seconds(newest - last.called)} before the newest call of the job{_from(last)}"
        )
    for number in stop.wait.inside[:1] if stop.cause is not Cause.CYCLE else ():
        waiting = next((call for call in ranks[number].calls if _is(call, stop.wait)), None)
        if waiting is not None and number not in stop.ranks:
            lines.append(f"rank {number}: in {_call(waiting, ranks)}{_from(waiting)}")
    return lines


def _is(call: Call, wait: Wait) -> bool:
    return (call.group, call.seq, call.peer) == (wait.group, wait.seq, wait.peer)


def _call(call: Call, ranks: Mapping[int, Rank]) -> str:
    if call.peer is not None:
        return f"{call.op} {'to' if call.op == 'send' else 'from'} rank {call.peer}"
    return f"{call.op} {call.seq} of {_group(call, ranks)}"


def _link(wait: Wait, ranks: Mapping[int, Rank]) -> str:
    if wait.peer is not None:
        return f"{wait.op} {'to' if wait.op == 'send' else 'from'} rank {wait.peer}"
    needs = "needs" if len(wait.inside) == 1 else "need"
    return f"{wait.op} {wait.seq} of {_group(wait, ranks)} and {needs} {_plain(wait.missing)}"


def _group(of: Call | Wait, ranks: Mapping[int, Rank]) -> str:
    """`group dp (3)`: what the job calls it and torch's own name, without one that says nothing."""
    desc = next((seen.groups[of.group] for seen in ranks.values() if seen.groups.get(of.group)), "")
    return f"group {desc} ({of.group.name})" if desc and desc != of.group.name else f"group {of.group.name}"


def _from(call: Call) -> str:
    """The innermost line of the job's own that made the call."""
    own = [frame for frame in call.frames if not is_library(frame.file)]
    frame: Frame | None = next(iter(own or call.frames), None)
    return f", called by {frame.func} ({frame.file.rpartition('/')[2]}:{frame.line})" if frame is not None else ""


def _plain(ranks: Iterable[int]) -> str:
    ordered = sorted(ranks)
    return f"rank {ordered[0]}" if len(ordered) == 1 else f"ranks {ranks_text(ordered)}"


def _ranks(ranks: Sequence[int], one: str, many: str) -> str:
    return f"{_plain(ranks)} {one if len(ranks) == 1 else many}"


def _num(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
