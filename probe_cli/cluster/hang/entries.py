"""The calls in dumps of torch's Flight Recorder, with what each dump says of its process groups.

Three things in a dump are not what they seem. A call inside a coalesced batch (`batch_isend_irecv`, an uneven
all_gather) stays `scheduled` for ever: the `coalesced` entry behind it has the state of all of them. A dump may hold
the active calls alone (`onlyActive`): a rank that has no entry of a call may have ended it, which `pg_status` tells.
And gloo tells neither state nor members: `retired` is all that it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .calls import Call, Frame, Group, Rank, Shapes

__all__ = ["Entry", "as_ranks"]

Entry = dict[str, Any]  # as torch wrote it

_PEERS = re.compile(r"^(send|recv)\s+(\d+)(->|<-)(\d+)$")
_UNNAMED = ("", "undefined")


@dataclass(frozen=True)
class _Job:
    """What all dumps together say of the job's groups."""

    members: Mapping[tuple[int, str], tuple[int, ...]]
    #: Groups with collectives, and with sends and receives, of NCCL or its like; gloo's are in neither.
    collectives: frozenset[str]
    p2p: frozenset[str]
    #: Groups whose sends and receives are made in batches.
    batched: frozenset[str]


@dataclass(frozen=True)
class _Told:
    """What one dump says of itself, beside its calls."""

    #: No call in it has ended: those that have were left out.
    only_active: bool
    #: By group: the numbers of the newest operation that was called, and that has ended.
    status: Mapping[str, tuple[int, int]]


def as_ranks(dumps: Mapping[int, Entry]) -> dict[int, Rank]:
    """Return what each rank's dump shows."""
    job = _job(dumps)
    return {rank: _rank(rank, dump, job) for rank, dump in dumps.items()}


def _job(dumps: Mapping[int, Entry]) -> _Job:
    collectives: set[str] = set()
    p2p: set[str] = set()
    batched: set[str] = set()
    for dump in dumps.values():
        seen: set[tuple[str, int]] = set()
        for entry in dump["entries"]:
            name, _ = _group_name(entry)
            if _is_gloo(entry):
                continue
            (p2p if _is_p2p(entry) else collectives).add(name)
            if _is_p2p(entry) and (_op(entry) == "coalesced" or (name, _seq(entry)) in seen):
                batched.add(name)
            if _is_p2p(entry):
                seen.add((name, _seq(entry)))
    return _Job(_members(dumps), frozenset(collectives), frozenset(p2p), frozenset(batched))


def _members(dumps: Mapping[int, Entry]) -> dict[tuple[int, str], tuple[int, ...]]:
    """Return the ranks of each rank's groups. A group that a dump does not know is known from the dump of another
    member. gloo leaves them out: then the default group is everybody, and of any other those that have called in it
    are known to be members."""
    told = {
        (rank, str(config.get("name") or uid)): _numbers(config.get("ranks"))
        for rank, dump in dumps.items()
        for uid, config in (dump.get("pg_config") or {}).items()
        if isinstance(config, dict)
    }
    by_name: dict[str, set[tuple[int, ...]]] = {}
    for (_, name), ranks in told.items():
        by_name.setdefault(name, set()).add(ranks)
    callers: dict[str, set[int]] = {}
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            callers.setdefault(_group_name(entry)[0], set()).add(rank)
    found = {}
    for rank, dump in dumps.items():
        for name, desc in {_group_name(entry) for entry in dump["entries"]}:
            others = [ranks for ranks in by_name.get(name, ()) if rank in ranks]
            everyone = desc == "default_pg" or len(callers) == 1
            inferred = tuple(range(max(dumps) + 1)) if everyone else tuple(sorted(callers[name]))
            found[rank, name] = told.get((rank, name)) or (others[0] if len(others) == 1 else inferred)
    return {**told, **found}


def _rank(rank: int, dump: Entry, job: _Job) -> Rank:
    told = _Told(
        bool(dump["entries"]) and all(_state(entry) != "completed" for entry in dump["entries"]), _status(dump)
    )
    mine = {name: ranks for (owner, name), ranks in job.members.items() if owner == rank and name and rank in ranks}
    groups = {Group(name, ranks): "" for name, ranks in mine.items()}
    for uid, about in (dump.get("pg_config") or {}).items():
        name = str(about.get("name") or uid) if isinstance(about, dict) else ""
        group = Group(name, job.members.get((rank, name), ()))
        if group in groups:
            groups[group] = _desc(about.get("desc"))
    calls: list[Call] = []
    for batch in _batches(dump["entries"]):
        name, desc = _group_name(batch[0])
        group = Group(name, job.members[rank, name])
        groups[group] = _desc(desc) or groups.get(group, "")
        calls += _calls(batch, group, told, job)
    come = {group: told.status[group.name][0] for group in groups if _tells_collectives(group.name, told, job)}
    numbered = tuple(replace(call, order=order) for order, call in enumerate(calls))
    return Rank(rank, numbered, groups, come)


def _tells_collectives(name: str, told: _Told, job: _Job) -> bool:
    """Whether the status of a group counts collectives: sends and receives are counted in the same place."""
    return name in told.status and name in job.collectives and name not in job.p2p


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Return the entries in the order of their calls, those of one launch together: they share their number."""
    batches: dict[object, list[Entry]] = {}
    for at, entry in enumerate(sorted(entries, key=lambda entry: int(entry.get("record_id", 0)))):
        alone = _is_gloo(entry) or not any(key in entry for key in ("collective_seq_id", "p2p_seq_id", "seq_id"))
        place = at if alone else (_group_name(entry)[0], _is_p2p(entry), _seq(entry))
        batches.setdefault(place, []).append(entry)
    yield from batches.values()


def _calls(batch: Sequence[Entry], group: Group, told: _Told, job: _Job) -> Iterator[Call]:
    """Return the call that these entries are, or the sends and receives that were launched together."""
    last = batch[-1]
    is_ended = len(batch) > 1 and _op(last).endswith("coalesced")
    parts = [entry for entry in batch if _op(entry) != "coalesced"] if len(batch) > 1 else batch
    if _is_p2p(batch[0]):
        over = _is_over(last) or (_op(last) != "coalesced" and _was_left_out(batch, group, told, job))
        for entry in parts:
            ends = _PEERS.match(_op(entry))
            if ends is not None:
                peer = _job_rank(group, int(ends[4]))
                call = _call(entry, group, ends[1])
                yield replace(call, peer=peer, is_over=over, has_started=_has_started(last), batch=_seq(entry))
        return
    over = _is_over(last) or (len(batch) > 1 and not is_ended and _was_left_out(batch, group, told, job))
    name, done = group.name, told.status.get(group.name, (-1, -1))[1]
    over = over or (_tells_collectives(name, told, job) and _seq(last) <= done)
    inner = [entry for entry in parts if entry is not last or not is_ended]
    kinds = ", ".join(dict.fromkeys(_op(entry) for entry in inner))
    op = f"coalesced {kinds}" if _op(last) == "coalesced" and inner and is_ended else _op(last)
    merged = _call(last, group, op)
    if is_ended and inner:
        each = [_call(entry, group, "") for entry in inner]
        merged = replace(
            merged,
            inputs=tuple(size for call in each for size in call.inputs),
            outputs=tuple(size for call in each for size in call.outputs),
            dtypes=tuple(dict.fromkeys(dtype for call in each for dtype in call.dtypes)),
            output_dtypes=tuple(dict.fromkeys(dtype for call in each for dtype in call.output_dtypes)),
            frames=merged.frames or each[0].frames,
        )
    yield replace(merged, is_over=over)


def _was_left_out(batch: Sequence[Entry], group: Group, told: _Told, job: _Job) -> bool:
    """Whether a batch without its last entry has ended: that entry is left out of a dump of active calls. One send
    without it may have been made in no batch; then the status tells, where it counts nothing else."""
    if not told.only_active or len(batch) > 1 or group.name not in told.status or group.name in job.collectives:
        return told.only_active and (len(batch) > 1 or group.name in job.batched)
    return _seq(batch[0]) <= told.status[group.name][1]


def _call(entry: Entry, group: Group, op: str) -> Call:
    return Call(
        group,
        _seq(entry),
        op.lstrip("_"),
        0,
        has_started=_has_started(entry),
        is_over=_is_over(entry),
        inputs=_shapes(entry.get("input_sizes")),
        outputs=_shapes(entry.get("output_sizes")),
        dtypes=_names(entry.get("input_dtypes")),
        output_dtypes=_names(entry.get("output_dtypes")),
        called=int(entry.get("time_created_ns") or 0) * 1e-9,
        timeout_s=int(entry["timeout_ms"]) * 1e-3 if entry.get("timeout_ms") else None,
        frames=tuple(_frames(entry.get("frames") or ())),
    )


def _state(entry: Entry) -> str:
    return str(entry["state"])


def _has_started(entry: Entry) -> bool:
    return _state(entry) in ("started", "completed") or bool(entry.get("time_discovered_started_ns"))


def _is_over(entry: Entry) -> bool:
    """gloo says no more than `retired`; on NCCL a call that is retired and not completed has run into its timeout."""
    return _state(entry) == "completed" or (_is_gloo(entry) and bool(entry.get("retired")))


def _is_gloo(entry: Entry) -> bool:
    return str(entry["profiling_name"]).startswith("gloo:")


def _op(entry: Entry) -> str:
    backend, colon, op = str(entry["profiling_name"]).partition(":")
    return op if colon else backend


def _is_p2p(entry: Entry) -> bool:
    told = entry.get("is_p2p")
    return bool(told) if told is not None else _PEERS.match(_op(entry)) is not None


def _seq(entry: Entry) -> int:
    """Its number in the group, of sends and receives or of collectives. Before torch 2.4 there is one count."""
    number = "p2p_seq_id" if _is_p2p(entry) else "collective_seq_id"
    return int(entry[number] if number in entry else entry.get("seq_id", 0))


def _status(dump: Entry) -> dict[str, tuple[int, int]]:
    """Return by group what `pg_status` says. It is kept by a number of its own, which entries have beside the name; a
    group without entries is known where groups are numbered in the order in which they were made."""
    status = {str(uid): told for uid, told in (dump.get("pg_status") or {}).items() if isinstance(told, dict)}
    names = {str(entry["pg_id"]): _group_name(entry)[0] for entry in dump["entries"] if "pg_id" in entry}
    configured = [str(config.get("name") or uid) for uid, config in (dump.get("pg_config") or {}).items()]
    if len(configured) == len(status) and all(text.isdecimal() for text in (*configured, *status)):
        in_order = dict(zip(sorted(status, key=int), sorted(configured, key=int), strict=True))
        if all(in_order.get(uid) == name for uid, name in names.items()):
            names = in_order
    return {
        name: (_int(status[uid].get("last_enqueued_collective")), _int(status[uid].get("last_completed_collective")))
        for uid, name in names.items()
        if uid in status
    }


def _group_name(entry: Entry) -> tuple[str, str]:
    """The group's name and description; dumps of torch 2.2 and older have its number only."""
    named = entry.get("process_group")
    return (str(named[0]), str(named[1])) if named else (str(entry.get("pg_id", 0)), "undefined")


def _desc(desc: object) -> str:
    return "" if desc is None or desc in _UNNAMED else str(desc)


def _job_rank(group: Group, rank_in_group: int) -> int:
    return group.ranks[rank_in_group] if rank_in_group < len(group.ranks) else rank_in_group


def _numbers(text: object) -> tuple[int, ...]:
    """`[0, 1, 2]`, as a list or as text; empty where it is not told."""
    if isinstance(text, list | tuple):
        return tuple(sorted(int(number) for number in text))
    return tuple(sorted(int(number) for number in re.findall(r"\d+", str(text or ""))))


def _int(value: object) -> int:
    return int(value) if isinstance(value, int | str) else -1


def _names(dtypes: object) -> tuple[str, ...]:
    if isinstance(dtypes, list | tuple):
        return tuple(map(str, dtypes))
    return (str(dtypes),) if dtypes else ()


def _shapes(sizes: object) -> Shapes:
    if not isinstance(sizes, list | tuple):
        return ()
    return tuple(tuple(map(int, size)) for size in sizes if isinstance(size, list | tuple))


def _frames(frames: Iterable[Mapping[str, object]]) -> Iterator[Frame]:
    for frame in frames:
        yield Frame(str(frame.get("name", "")), str(frame.get("filename", "")), int(str(frame.get("line", 0))))
