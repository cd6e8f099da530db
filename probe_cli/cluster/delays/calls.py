"""The calls of all ranks as one set of columns, on one clock, each call once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from .rows import CALLS, RankRows

__all__ = ["Calls", "flatten"]

#: Two rows of one send or receive may differ so much in when it began, since each row asks the clock anew.
SAME_S = 20e-6
P2P = ("send", "recv")


@dataclass(frozen=True)
class Calls:
    """One row a call, by rank and time. Times in seconds since `Names.epoch`."""

    rank: np.ndarray  # index of the rank
    step: np.ndarray
    group: np.ndarray  # index into `Names.groups`
    op: np.ndarray  # index into `Names.ops`
    seq: np.ndarray
    peer: np.ndarray  # index of the rank at the other end, -1 for collectives and where it is not known
    start: np.ndarray
    ended: np.ndarray
    wait: np.ndarray
    phase: np.ndarray  # index into `Names.phases`
    by_cpp: np.ndarray
    on_device: np.ndarray
    met: np.ndarray  # number of the collective, the same on all of its ranks; -1 for sends and receives

    def __len__(self) -> int:
        return len(self.rank)

    def take(self, which: np.ndarray) -> Calls:
        return Calls(*(getattr(self, column.name)[which] for column in fields(self)))


@dataclass(frozen=True)
class Names:
    """What the numbers in `Calls` stand for."""

    groups: tuple[str, ...]
    #: How many ranks each of them has, 0 where not known.
    sizes: np.ndarray
    ops: tuple[str, ...]
    phases: tuple[str, ...]
    epoch: float

    def is_op(self, op: np.ndarray, *names: str) -> np.ndarray:
        return np.isin(op, [at for at, name in enumerate(self.ops) if name in names])


def flatten(ranks: Sequence[RankRows]) -> tuple[Calls, Names]:
    """The calls of `ranks`, numbered, sorted, and without the first of two rows of the same call."""
    parts = {name: [np.asarray(rank.calls[name]) for rank in ranks] for name in CALLS}
    column = {name: np.concatenate(parts[name]) for name in CALLS if name not in ("group", "op", "phase")}
    rank = np.repeat(np.arange(len(ranks)), [len(part) for part in parts["start"]])
    offset = np.array([own.offset for own in ranks])[rank]
    epoch = float((column["start"] - offset).min()) if len(rank) else 0.0
    group, groups = _codes(parts["group"])
    op, ops = _codes(parts["op"])
    phase, phases = _codes(parts["phase"])
    names, sizes, group = _told_apart(ranks, rank, group, groups)
    index_of = {own.who.rank: at for at, own in enumerate(ranks)}
    known = np.unique(column["peer"])
    peers = np.array([index_of.get(number, -1) for number in known.tolist()], dtype=np.int64)
    seq = column["seq"].astype(np.int64)
    is_p2p = np.isin(op, [at for at, name in enumerate(ops) if name in P2P])
    met = np.full(len(rank), -1)
    together = (seq >= 0) & ~is_p2p
    met[together] = np.unique(group[together] * (seq.max(initial=0) + 1) + seq[together], return_inverse=True)[1]
    calls = Calls(
        rank=rank,
        step=column["step"].astype(np.int64),
        group=group,
        op=op,
        seq=seq,
        peer=np.where(is_p2p, peers[np.searchsorted(known, column["peer"])], -1) if len(rank) else seq,
        start=column["start"] - offset - epoch,
        ended=column["ended"] - offset - epoch,
        wait=column["wait"].astype(float),
        phase=phase,
        by_cpp=column["by_cpp"].astype(bool),
        on_device=column["on_device"].astype(bool),
        met=met,
    )
    calls = calls.take(np.lexsort((calls.start, calls.rank)))
    return _once(calls), Names(names, sizes, ops, phases, epoch)


def _codes(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, tuple[str, ...]]:
    values = [value for column in columns for value in column.tolist()]
    index = {name: at for at, name in enumerate(dict.fromkeys(values))}
    return np.fromiter(map(index.__getitem__, values), np.int64, len(values)), tuple(index)


def _told_apart(
    ranks: Sequence[RankRows], rank: np.ndarray, group: np.ndarray, groups: Sequence[str]
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Groups of one name and different members become different groups. What a rank does not tell of its group, another
    one does that says it is a member."""
    if not any(own.members for own in ranks):
        return tuple(groups), np.zeros(len(groups), dtype=np.int64), group
    number: dict[tuple[str, tuple[int, ...]], int] = {}
    members = [{name: tuple(sorted(own.members[name])) for name in own.members} for own in ranks]
    known: dict[str, set[tuple[int, ...]]] = {}
    for told in members:
        for name, ranks_of in told.items():
            known.setdefault(name, set()).add(ranks_of)
    for own, told in zip(ranks, members, strict=True):
        for name in known.keys() - told.keys():
            mine = [ranks_of for ranks_of in known[name] if own.who.rank in ranks_of]
            if len(mine) == 1:
                told[name] = mine[0]
    pairs, inverse = np.unique(rank * len(groups) + group, return_inverse=True)
    of_pair = [
        number.setdefault(
            (groups[pair % len(groups)], members[pair // len(groups)].get(groups[pair % len(groups)], ())), len(number)
        )
        for pair in pairs.tolist()
    ]
    sizes = np.array([len(ranks_of) for _, ranks_of in number], dtype=np.int64)
    return tuple(name for name, _ in number), sizes, np.array(of_pair, dtype=np.int64)[inverse]


def _once(calls: Calls) -> Calls:
    """A call that took long has a row from while it waited and another from when it was over: the second counts."""
    keep = np.ones(len(calls), dtype=bool)
    together = np.flatnonzero(calls.met >= 0)
    key = calls.rank[together] * (calls.met.max(initial=0) + 1) + calls.met[together]
    order = np.lexsort((calls.ended[together], key))
    keep[together[order[:-1][key[order][:-1] == key[order][1:]]]] = False
    alone = np.flatnonzero(calls.met < 0)
    order = alone[
        np.lexsort((calls.start[alone], calls.peer[alone], calls.op[alone], calls.group[alone], calls.rank[alone]))
    ]
    before, after = order[:-1], order[1:]
    twice = np.isnan(calls.wait[before]) & (calls.start[after] - calls.start[before] < SAME_S)
    for column in (calls.rank, calls.group, calls.op, calls.peer):
        twice &= column[before] == column[after]
    keep[before[twice]] = False
    return calls if keep.all() else calls.take(keep)
