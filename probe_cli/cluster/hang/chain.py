"""Whom a job that stands still waits for: from each rank's open call to the ranks that have not come to it, and on
through what those wait for themselves, to the end of the chain.

Ranks are aligned by group and number within the group. The end of a chain is a rank that waits for nobody: it has not
come to a collective and is elsewhere, or it has, and its device has not. Ranks that wait for each other in different
groups are a cycle. Where all have come and none is done, it is the network or a device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from .calls import Call, Group, Rank

#: What differs, each with its ranks.
Variants = tuple[tuple[str, tuple[int, ...]], ...]

__all__ = ["Cause", "Stop", "Wait", "stops"]


class Cause(Enum):
    """Why a call does not end."""

    ABSENT = "absent"  # ranks have not come to it, and wait for nobody
    MISMATCH = "mismatch"  # ranks have come with another operation, sizes or types
    CYCLE = "cycle"  # ranks wait for each other in different groups
    DEVICE = "device"  # ranks have called it, but their device has not begun it as others' has
    NO_PEER = "no peer"  # a send without its receive, or the other way round
    UNSEEN = "unseen"  # ranks of which nothing is known
    NETWORK = "network"  # all have come, none is done


@dataclass(frozen=True, order=True)
class Wait:
    """A call that some ranks of its group are in."""

    group: Group
    seq: int
    op: str
    inside: tuple[int, ...]
    #: Those they wait for.
    missing: tuple[int, ...]
    peer: int | None = None


@dataclass(frozen=True)
class Stop:
    """The end of a chain of waits."""

    cause: Cause
    #: Whose fault it is; empty where nobody can be told from the others.
    ranks: tuple[int, ...]
    wait: Wait
    #: Of a mismatch: what differs, each with its ranks, the most common first.
    variants: Variants = ()
    #: All ranks that wait for it, directly or not.
    held_up: tuple[int, ...] = ()
    #: Of a cycle: the waits that it is made of.
    links: tuple[Wait, ...] = ()


def stops(ranks: Mapping[int, Rank]) -> list[Stop]:
    """Where the chains of waits end, the one that holds up most ranks first; empty if no call is open.

    A rank that left nothing may be anywhere: it is blamed only where no other end is known. So is the network."""
    found: dict[tuple[Cause, tuple[int, ...], Wait | None], Stop] = {}
    for stop in _ends(_Job(ranks)):
        # One rank may keep several groups waiting.
        place = None if stop.cause in (Cause.ABSENT, Cause.UNSEEN, Cause.DEVICE) else stop.wait
        known = found.get((stop.cause, stop.ranks, place), stop)
        held_up = tuple(sorted({*known.held_up, *stop.held_up}))
        earliest = min(known, stop, key=lambda each: (-len(each.wait.inside), each.wait))
        found[stop.cause, stop.ranks, place] = replace(earliest, held_up=held_up)
    for doubtful in (Cause.UNSEEN, Cause.NETWORK):
        certain = {key: stop for key, stop in found.items() if stop.cause is not doubtful}
        found = certain or found
    return sorted(found.values(), key=lambda stop: (-len(stop.held_up), stop.wait.seq, stop.ranks))


class _Job:
    """The ranks, and the one call that each of them is in."""

    def __init__(self, ranks: Mapping[int, Rank]) -> None:
        self.ranks = ranks
        self._calls: dict[tuple[Group, int], dict[int, Call]] = {}
        self._newest: dict[Group, dict[int, int]] = {}
        # Asked for each rank of a group, and the same for all of them.
        self._away: dict[tuple[Group, int], frozenset[int]] = {}
        self._late: dict[tuple[Group, int], frozenset[int]] = {}
        self._variants: dict[tuple[Group, int], Variants] = {}
        for rank, seen in ranks.items():
            for group in seen.groups:
                self._newest.setdefault(group, {}).setdefault(rank, -1)
            for call in seen.calls:
                if call.peer is None:
                    self._calls.setdefault((call.group, call.seq), {})[rank] = call
                    newest = self._newest.setdefault(call.group, {})
                    newest[rank] = max(newest.get(rank, -1), call.seq)
        self.call = {rank: self._open_call(seen) for rank, seen in ranks.items()}

    def at(self, call: Call) -> dict[int, Call]:
        """Who has made this call, as each has made it."""
        return self._calls[call.group, call.seq]

    def away(self, call: Call) -> frozenset[int]:
        """The ranks of its group that have not come to it, as far as is known."""
        place = (call.group, call.seq)
        if place not in self._away:
            newest = self._newest[call.group]
            come = {rank for rank in call.group.ranks if rank in self.ranks and newest.get(rank, -1) >= call.seq}
            self._away[place] = frozenset(call.group.ranks) - come
        return self._away[place]

    def is_done(self, call: Call, rank: int) -> bool:
        """Whether it is over on a rank that has come to it; what a rank has long ended it need not have kept."""
        made = self.at(call).get(rank)
        return made is None or made.is_over

    def late_devices(self, call: Call) -> frozenset[int]:
        """Ranks that have called it but whose device has not begun it, where that of others has."""
        place = (call.group, call.seq)
        if place not in self._late:
            made = self.at(call)
            begun = {rank for rank, each in made.items() if each.has_started or each.is_over}
            self._late[place] = frozenset(made) - begun if begun else frozenset()
        return self._late[place]

    def variants(self, call: Call) -> Variants:
        """How the ranks have made this call, where they differ."""
        if call.peer is not None:
            return ()
        place = (call.group, call.seq)
        if place not in self._variants:
            self._variants[place] = _variants(self.at(call))
        return self._variants[place]

    def wait(self, call: Call, rank: int, missing: Iterable[int]) -> Wait:
        """The call that this rank is in, and with it those that are in the same."""
        if call.peer is not None:
            return Wait(call.group, call.seq, call.op, (rank,), tuple(sorted(missing)), call.peer)
        made = self.at(call)
        op = Counter(each.op for each in made.values()).most_common(1)[0][0]
        inside = tuple(sorted(other for other, each in made.items() if not each.is_over))
        return Wait(call.group, call.seq, op, inside, tuple(sorted(missing)))

    def _open_call(self, seen: Rank) -> Call | None:
        """The earliest call that this rank is in; one that has ended elsewhere, with everybody come, is about to."""
        for call in seen.calls:
            if not call.is_over and not self._is_about_to_end(call):
                return call
        return None

    def _is_about_to_end(self, call: Call) -> bool:
        if call.peer is not None:
            return False
        return not self.away(call) and any(self.is_done(call, rank) for rank in call.group.ranks)


def _ends(job: _Job) -> Iterable[Stop]:
    blockers = {rank: _blockers(job, rank, call) for rank, call in job.call.items() if call is not None}
    reached = {rank: _reached(rank, blockers) for rank in blockers}

    def held_up_by(ends: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(rank for rank in blockers if reached[rank] & set(ends) and rank not in ends))

    for rank, call in job.call.items():
        if call is None:
            continue
        wait = job.wait(call, rank, blockers[rank])
        variants = job.variants(call)
        around = {other for other in reached[rank] if rank in reached.get(other, ())}
        beyond = reached[rank] - around
        if len(variants) > 1:
            yield Stop(Cause.MISMATCH, _minority(variants), wait, variants, held_up_by(wait.inside) or wait.inside)
        elif around and not any(other in job.ranks and not blockers.get(other) for other in beyond):
            made = {other: made for other in around if (made := job.call[other]) is not None}
            links = sorted({job.wait(call, other, blockers[other]) for other, call in made.items()})
            yield Stop(Cause.CYCLE, tuple(sorted(around)), links[0], (), held_up_by(around), tuple(links))
        else:
            for cause, ends in _causes(job, call, blockers[rank], blockers):
                held = held_up_by(ends) if ends else tuple(sorted({*wait.inside, *held_up_by(wait.inside)}))
                yield Stop(cause, tuple(ends), wait, (), held)


def _blockers(job: _Job, rank: int, call: Call) -> set[int]:
    """The ranks that this one waits for in `call`."""
    if call.peer is not None:
        met = call.peer in job.ranks and _answers(job.call[call.peer], call, rank)
        return set() if met or call.peer == rank else {call.peer}
    away = job.away(call)
    if away:
        return set(away)
    elsewhere = set()
    for other in call.group.ranks:
        theirs = job.call[other]
        is_here = theirs is None or (theirs.group, theirs.seq) == (call.group, call.seq) or job.is_done(call, other)
        if other != rank and not is_here:
            elsewhere.add(other)
    late = job.late_devices(call)
    return elsewhere or (set() if rank in late else set(late))


def _answers(theirs: Call | None, mine: Call, rank: int) -> bool:
    """Whether the other end of a send or a receive is in its part of it."""
    other = {"send": "recv", "recv": "send"}.get(mine.op)
    return theirs is not None and (theirs.group, theirs.op, theirs.peer) == (mine.group, other, rank)


def _causes(
    job: _Job, call: Call, waits_for: set[int], blockers: Mapping[int, set[int]]
) -> Iterable[tuple[Cause, list[int]]]:
    unseen = sorted(rank for rank in waits_for if rank not in job.ranks)
    free = sorted(rank for rank in waits_for if rank in job.ranks and job.call[rank] is None)
    if free:
        yield (Cause.ABSENT if call.peer is None else Cause.NO_PEER), free
    if unseen:
        yield Cause.UNSEEN, unseen
    late_here = job.late_devices(call) if call.peer is None else frozenset()
    stuck = sorted(rank for rank in late_here & waits_for if not blockers.get(rank) and job.call[rank] is not None)
    if stuck:
        yield Cause.DEVICE, stuck
    if not waits_for and not late_here:
        yield (Cause.NETWORK if len(call.group.ranks) > 1 else Cause.UNSEEN), []


def _reached(rank: int, blockers: Mapping[int, set[int]]) -> set[int]:
    """All that a rank waits for, through others as well; itself, where it is in a cycle."""
    found: set[int] = set()
    todo = list(blockers.get(rank, ()))
    while todo:
        other = todo.pop()
        if other not in found:
            found.add(other)
            todo += blockers.get(other, ())
    return found


#: Operations in which ranks may put in, or get, as much as they like.
_UNEVEN_IN = ("all_to_all", "alltoall", "scatter", "gather_v", "reduce_scatter_v", "coalesced")
_UNEVEN_OUT = ("all_to_all", "alltoall", "gather", "scatter_v", "coalesced")


def _variants(made: Mapping[int, Call]) -> Variants:
    """The operation, the sizes or the types, whichever differs first, each with its ranks; the most common first."""
    for signature in (_operation, _sizes, _types):
        alike: dict[str, list[int]] = {}
        for rank, call in sorted(made.items()):
            text = signature(call)
            if text is not None:
                alike.setdefault(text, []).append(rank)
        if len(alike) > 1:
            ordered = sorted(alike.items(), key=lambda item: (-len(item[1]), item[1]))
            return tuple((text, tuple(ranks)) for text, ranks in ordered)
    return ()


def _operation(call: Call) -> str | None:
    return call.op


def _sizes(call: Call) -> str | None:
    if not call.inputs and not call.outputs:
        return None  # not known: the rows of a rank whose recorder is silent
    takes = "" if call.op.startswith(_UNEVEN_IN) else str([list(size) for size in call.inputs])
    gives = "" if call.op.startswith(_UNEVEN_OUT) or not call.outputs else str([list(size) for size in call.outputs])
    if takes == gives or not gives:
        return f"{call.op} of {takes}" if takes else None
    return f"{call.op} of {takes} to {gives}" if takes else None


def _types(call: Call) -> str | None:
    return f"{call.op} of {', '.join(sorted(set(call.dtypes)))}" if call.dtypes and call.op != "scatter" else None


def _minority(variants: Variants) -> tuple[int, ...]:
    """The ranks that differ from most; nobody where there is no most."""
    if len(variants[0][1]) == len(variants[1][1]):
        return ()
    return tuple(sorted(rank for _, ranks in variants[1:] for rank in ranks))
