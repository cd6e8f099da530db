"""Whom a job that stands still waits for: from each rank's open call to the ranks that have not come to it, and on
through what those wait for themselves, to the end of the chain.

Ranks are aligned by group and number within the group. The end of a chain is a rank that waits for nobody: it has not
come to a collective and is elsewhere, or it has, and its device has not. Ranks that wait for each other in different
groups are a cycle. Where all have come and none is done, it is the network or a device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import prod

from .calls import Call, Group, Rank, Shapes

#: What differs, each with its ranks.
Variants = tuple[tuple[str, tuple[int, ...]], ...]

__all__ = ["Cause", "Stop", "Wait", "stops"]


class Cause(Enum):
    """Why a call does not end."""

    ABSENT = "absent"  # ranks have not come to it, and wait for nobody
    MISMATCH = "mismatch"  # ranks have come with another operation, sizes or types
    CYCLE = "cycle"  # ranks wait for each other in different groups
    DEVICE = "device"  # ranks have called it, but their device has not begun it as others' has
    LEFT_BEHIND = "left behind"  # ranks are in a call that all others have ended
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

    @property
    def is_of_sends(self) -> bool:
        """Whether ranks wait for each other in sends and receives alone, which no rank outside of them can end."""
        return self.cause is Cause.CYCLE and all(link.peer is not None for link in self.links)


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
    for doubtful in (Cause.LEFT_BEHIND, Cause.UNSEEN, Cause.NETWORK):
        certain = {key: stop for key, stop in found.items() if stop.cause is not doubtful}
        found = certain or found
    return sorted(found.values(), key=lambda stop: (-len(stop.held_up), stop.wait.seq, stop.ranks))


class _Job:
    """The ranks, and the calls that each of them is in."""

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
            for group, newest_seq in seen.come.items():
                newest = self._newest.setdefault(group, {})
                newest[rank] = max(newest.get(rank, -1), newest_seq)
            for call in seen.calls:
                if call.peer is None:
                    self._calls.setdefault((call.group, call.seq), {})[rank] = call
                    newest = self._newest.setdefault(call.group, {})
                    newest[rank] = max(newest.get(rank, -1), call.seq)
        #: The calls that each rank waits in: sends and receives up to the first collective, and that one.
        self.calls = {rank: tuple(self._open_calls(seen)) for rank, seen in ranks.items()}

    def first(self, rank: int) -> tuple[Call, ...]:
        """The calls that its device, or its thread, is at: the first one, and those that run at the same time."""
        calls = self.calls.get(rank, ())
        return tuple(call for call in calls if call is calls[0] or _run_together(call, calls[0]))

    def is_at(self, rank: int, call: Call) -> bool:
        """Return whether this call is what its device is at, and not one before it."""
        return any((one.group, one.seq, one.peer) == (call.group, call.seq, None) for one in self.first(rank))

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
        place = (call.group, call.seq)
        if place not in self._variants:
            made = self.at(call)
            self._variants[place] = _variants(made, is_complete=set(made) == set(call.group.ranks))
        return self._variants[place]

    def wait(self, call: Call, rank: int, missing: Iterable[int]) -> Wait:
        """The call that this rank is in, and with it those that are in the same."""
        if call.peer is not None:
            return Wait(call.group, call.seq, call.op, (rank,), tuple(sorted(missing)), call.peer)
        made = self.at(call)
        op = Counter(each.op for each in made.values()).most_common(1)[0][0]
        inside = tuple(sorted(other for other, each in made.items() if not each.is_over))
        return Wait(call.group, call.seq, op, inside, tuple(sorted(missing)))

    def _open_calls(self, seen: Rank) -> Iterator[Call]:
        """The calls that this rank is in; one that has ended elsewhere, with everybody come, is about to."""
        for call in seen.calls:
            if not call.is_over and not self.is_about_to_end(call):
                yield call
                if call.peer is None:
                    return

    def is_about_to_end(self, call: Call) -> bool:
        """Return whether all have come, and some have ended it."""
        if call.peer is not None:
            return False
        return not self.away(call) and any(self.is_done(call, rank) for rank in call.group.ranks)


def _run_together(one: Call, other: Call) -> bool:
    return one.batch is not None and (one.group, one.batch) == (other.group, other.batch)


def _ends(job: _Job) -> Iterable[Stop]:
    each = {(rank, call): _blockers(job, rank, call) for rank, calls in job.calls.items() for call in calls}
    blockers = {
        rank: {other for call in calls for other in each[rank, call]} for rank, calls in job.calls.items() if calls
    }
    reached = {rank: _reached(rank, blockers) for rank in blockers}

    def held_up_by(ends: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(rank for rank in blockers if reached[rank] & set(ends) and rank not in ends))

    for (rank, call), waits_for in each.items():
        # Of what runs at the same time, a call that all have come to does not hold a rank up.
        if not waits_for and (blockers[rank] or call is not job.calls[rank][0]):
            continue
        wait = job.wait(call, rank, waits_for)
        variants = job.variants(call) if call.peer is None else _halves(job, rank, call)
        around = {other for other in reached[rank] if rank in reached.get(other, ())}
        beyond = reached[rank] - around
        if variants:
            yield Stop(Cause.MISMATCH, _minority(variants), wait, variants, held_up_by(wait.inside) or wait.inside)
        elif around and not any(other in job.ranks and not blockers.get(other) for other in beyond):
            links = sorted({job.wait(made, other, each[other, made]) for other in around for made in job.first(other)})
            yield Stop(Cause.CYCLE, tuple(sorted(around)), links[0], (), held_up_by(around), tuple(links))
        else:
            for cause, ends in _causes(job, call, waits_for, blockers):
                held = held_up_by(ends) if ends else tuple(sorted({*wait.inside, *held_up_by(wait.inside)}))
                yield Stop(cause, tuple(ends), wait, (), held)
    yield from _left_behind(job)


def _left_behind(job: _Job) -> Iterable[Stop]:
    """Calls that ranks are in though all have come, and others have ended them; nothing, while a job works."""
    for rank, seen in job.ranks.items():
        call = next((call for call in seen.calls if not call.is_over and not job.calls[rank]), None)
        if call is not None:
            wait = job.wait(call, rank, ())
            yield Stop(Cause.LEFT_BEHIND, wait.inside, wait)


def _blockers(job: _Job, rank: int, call: Call) -> set[int]:
    """The ranks that this one waits for in `call`."""
    if call.peer is not None:
        met = any(_answers(theirs, call, rank) for theirs in job.first(call.peer))
        return set() if met or call.peer == rank else {call.peer}
    away = job.away(call)
    if away:
        return set(away)
    elsewhere = set()
    for other in call.group.ranks:
        is_here = not job.first(other) or job.is_at(other, call)
        if other != rank and not is_here and not job.is_done(call, other):
            elsewhere.add(other)
    late = job.late_devices(call)
    return elsewhere or (set() if rank in late else set(late))


def _answers(theirs: Call, mine: Call, rank: int) -> bool:
    """Whether a call of the other end of a send or a receive is its part of it."""
    other = {"send": "recv", "recv": "send"}.get(mine.op)
    return (theirs.group, theirs.op, theirs.peer) == (mine.group, other, rank)


def _causes(
    job: _Job, call: Call, waits_for: set[int], blockers: Mapping[int, set[int]]
) -> Iterable[tuple[Cause, list[int]]]:
    unseen = sorted(rank for rank in waits_for if rank not in job.ranks)
    free = sorted(rank for rank in waits_for if rank in job.ranks and not job.calls[rank])
    if free:
        yield (Cause.ABSENT if call.peer is None else Cause.NO_PEER), free
    if unseen:
        yield Cause.UNSEEN, unseen
    late_here = job.late_devices(call) if call.peer is None else frozenset()
    stuck = sorted(rank for rank in late_here & waits_for if not blockers.get(rank) and job.is_at(rank, call))
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


def _halves(job: _Job, rank: int, call: Call) -> Variants:
    """A send and the receive that answers it, if the one has more or less than the other expects."""
    theirs = next((theirs for theirs in job.first(call.peer or 0) if _answers(theirs, call, rank)), None)
    one, other = _sent(call), _sent(theirs) if theirs is not None else ()
    if call.peer is None or theirs is None or not one or not other or _numel(one) == _numel(other):
        return ()
    return tuple(sorted([(f"{call.op} of {_text(one)}", (rank,)), (f"{theirs.op} of {_text(other)}", (call.peer,))]))


def _sent(call: Call) -> Shapes:
    return call.outputs or call.inputs if call.op == "recv" else call.inputs or call.outputs


#: Operations in which ranks may put in, or get, as much as they like.
_UNEVEN_IN = ("all_to_all", "alltoall", "scatter", "all_gather_v", "reduce_scatter_v")
_UNEVEN_OUT = ("all_to_all", "alltoall", "gather", "all_gather_v", "reduce_scatter_v")
#: Of those, the ones in which all that is put in comes out again.
_BALANCED = ("all_to_all", "alltoall")


def _variants(made: Mapping[int, Call], *, is_complete: bool) -> Variants:
    """The operation, the sizes or the types, whichever differs first, each with its ranks; the most common first."""
    if is_complete and _is_unbalanced(made.values()):
        return _alike(made, _all_sizes, at_least=1)
    return next((found for tell in (_operation, _sizes, _types) if (found := _alike(made, tell))), ())


def _alike(made: Mapping[int, Call], signature: Callable[[Call], str | None], at_least: int = 2) -> Variants:
    """The ranks whose call has the same signature, together; empty if there are fewer signatures."""
    alike: dict[str, list[int]] = {}
    for rank, call in sorted(made.items()):
        text = signature(call)
        if text is not None:
            alike.setdefault(text, []).append(rank)
    ordered = sorted(alike.items(), key=lambda item: (-len(item[1]), item[1]))
    return tuple((text, tuple(ranks)) for text, ranks in ordered) if len(alike) >= at_least else ()


def _is_unbalanced(calls: Iterable[Call]) -> bool:
    """Whether the ranks of an all_to_all together send other amounts than they receive; before torch 2.4 unknown."""
    calls = list(calls)
    if not all(call.op.startswith(_BALANCED) and call.inputs and call.outputs for call in calls):
        return False
    return sum(_numel(call.inputs) for call in calls) != sum(_numel(call.outputs) for call in calls)


def _numel(shapes: Shapes) -> int:
    return sum(prod(shape) for shape in shapes)


def _operation(call: Call) -> str | None:
    return call.op or None


def _sizes(call: Call) -> str | None:
    if not call.inputs and not call.outputs:
        return None  # not known: the rows of a rank whose recorder is silent
    takes = "" if call.op.startswith(_UNEVEN_IN) else _text(call.inputs)
    gives = "" if call.op.startswith(_UNEVEN_OUT) or not call.outputs else _text(call.outputs)
    if takes == gives or not gives:
        return f"{call.op} of {takes}" if takes else None
    return f"{call.op} of {takes} to {gives}" if takes else f"{call.op} to {gives}"


def _all_sizes(call: Call) -> str:
    return f"{call.op} of {_text(call.inputs)} to {_text(call.outputs)}"


def _text(shapes: Shapes) -> str:
    return str([list(size) for size in shapes])


def _types(call: Call) -> str | None:
    """Its types of what it takes and gives: who scatters nothing has no inputs, who gathers nothing no outputs."""
    takes = "" if call.op.startswith("scatter") else ", ".join(sorted(set(call.dtypes)))
    gives = "" if call.op.startswith("gather") else ", ".join(sorted(set(call.output_dtypes)))
    if not takes and not gives:
        return None
    return (
        f"{call.op} of {takes} to {gives}" if takes and gives and takes != gives else f"{call.op} of {takes or gives}"
    )


def _minority(variants: Variants) -> tuple[int, ...]:
    """The ranks that differ from most; nobody where there is no most."""
    if len(variants) < 2 or len(variants[0][1]) == len(variants[1][1]):
        return ()
    return tuple(sorted(rank for _, ranks in variants[1:] for rank in ranks))
