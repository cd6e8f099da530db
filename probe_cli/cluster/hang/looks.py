"""One look at a rank: its newest step and calls, the calls it is in, and the stack of its training thread.

Two looks a moment apart tell a rank that stands still from one that works. Runs in the CLI on its event loop, for all
ranks at once; a rank answers a look with a few milliseconds of its server, and of its GIL only for Flight Recorder.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from probe_agent.errors import LimitReached, NoAnswer, ProbeError, QueryFailed
from probe_agent.wire import Backtrace, QueryRequest, QueryResult, TargetInfo
from probe_cli.client import Client
from probe_cli.cluster.stacks import ask_stacks
from probe_cli.text import ranks_in

from .calls import Call, Group, Rank, Shapes
from .peers import Peer, ask_peer

__all__ = ["Look", "Pace", "as_ranks", "is_alone", "look", "look_from_outside"]

#: Calls that are not over, newest last; enough for one that runs far ahead of its device.
MAX_CALLS = 400
#: A recorder that is stopped, or waits for the GIL, is not waited for: its rings tell most of it.
RECORDER_S = 2.0


def _age(time: str) -> str:
    """SQL for how long ago that was, in seconds by the clock that wrote it: hosts' clocks differ."""
    return f"epoch(now()) - epoch({time})"


_PACE = (
    f"SELECT max(step), {_age('max(ts)')}, median(duration), max(duration), count(*), arg_max(duration, step)"
    " FROM python.steps WHERE step > (SELECT max(step) FROM python.steps) - 200"
)
_CALLED = f"SELECT epoch(max(start)), {_age('max(start)')} FROM python.collectives"
#: A call that nothing waited for is over once a later one of its group is.
_OPEN = (
    f'SELECT "group", op, seq, {_age("start")}, coalesce(peer, -1), arg_max(state, ts) AS state FROM'
    " (SELECT *, max(seq) FILTER (state = 'completed') OVER (PARTITION BY \"group\") AS done FROM python.collectives)"
    " WHERE start > (SELECT max(start) FROM python.collectives) - INTERVAL 1 HOUR"
    " GROUP BY \"group\", op, seq, start, peer, done HAVING arg_max(state, ts) = 'waiting'"
    " OR (arg_max(state, ts) = 'launched' AND (seq < 0 OR seq > coalesce(done, -1)))"
    # What a rank has ended in.
    " OR (arg_max(state, ts) = 'failed' AND start = (SELECT max(start) FROM python.collectives)) ORDER BY start"
)
_COME = 'SELECT "group", max(seq) FROM python.collectives WHERE seq >= 0 GROUP BY 1'
_OF_RINGS = (_PACE, _CALLED, _OPEN, _COME)
#: All of them in one statement, as one row: a list of rows for each.
_RINGS = "SELECT " + ", ".join(f"(SELECT list(r) FROM ({sql}) r)" for sql in _OF_RINGS)
_HISTORY = (
    f"SELECT {_age('max(ts)')}, coalesce(max(gap), 0.0), count(*) FROM"
    " (SELECT ts, epoch(ts) - epoch(lag(ts) OVER (ORDER BY ts)) AS gap FROM torch.flight_recorder)"
)


def _of_stall(section: str, **types: str) -> str:
    """SQL for what Flight Recorder said when the stall was noticed that the rank is in, or has died in; nothing once a
    call has begun or ended since."""
    columns = ", ".join(f"(content ->> '{name}')::{kind} AS \"{name}\"" for name, kind in types.items())
    return (
        f"(SELECT {columns} FROM python.stall_snapshot WHERE section = '{section}'"
        " AND (SELECT arg_max(state, ts) FROM python.stalls) = 'stalled'"
        " AND ts >= coalesce((SELECT max(ts) FROM python.collectives), ts))"
    )


def _groups(source: str) -> str:
    return (
        "SELECT \"group\", coalesce(nullif(group_desc, 'undefined'), ''), ranks, coalesce(last_enqueued, -1)"
        f" FROM {source}"
    )


def _recorded(source: str) -> str:
    """SQL for calls that are not over, and of each group the newest, by which the rank has come so far."""
    return (
        f"SELECT \"group\", op, seq, {_age('ts')}, state, coalesce(shape, ''), coalesce(dtype, ''), coalesce(bytes, 0),"
        f" coalesce(timeout, 0.0), started IS NOT NULL FROM {source} WHERE NOT is_p2p"
        " QUALIFY state <> 'completed' OR seq = max(seq) OVER (PARTITION BY \"group\")"
        f" ORDER BY state = 'completed' DESC, ts LIMIT {MAX_CALLS}"
    )


#: What the step under way has come to: calls of backward, and seconds in parts of it that have ended.
_CURRENT = (
    "SELECT micro_batches, data_wait + coalesce(modules, 0) + coalesce(backward, 0) + evaluation + generation"
    " FROM python.current_step"
)
_KNOWN_GROUPS = (
    "SELECT \"group\", coalesce(nullif(arg_max(group_desc, ts), 'undefined'), ''), arg_max(ranks, ts), -1"
    ' FROM python.groups GROUP BY "group"'
)
_LIVE_GROUPS = _groups("torch.process_groups")
_LIVE_CALLS = _recorded("torch.flight_recorder")
_STALLED_GROUPS = _groups(
    _of_stall("process_groups", group="VARCHAR", group_desc="VARCHAR", ranks="VARCHAR", last_enqueued="BIGINT")
)
_STALLED_CALLS = _recorded(
    "(SELECT * REPLACE (make_timestamp(ts) AS ts) FROM "
    + _of_stall(
        "flight_recorder",
        **dict.fromkeys(("group", "op", "state", "shape", "dtype"), "VARCHAR"),
        **dict.fromkeys(("seq", "ts", "bytes", "started"), "BIGINT"),
        timeout="DOUBLE",
        is_p2p="BOOLEAN",
    )
    + ")"
)


@dataclass(frozen=True)
class Pace:
    """How fast a rank went, of its newest steps or calls; times in seconds."""

    #: How long ago the newest ended, or was called.
    age: float
    median: float
    longest: float
    num: int
    #: The newest step.
    last: float = 0.0


@dataclass(frozen=True)
class Look:
    """What one rank showed."""

    step: int | None = None
    steps: Pace | None = None
    #: Collectives that torch's Flight Recorder has kept: the one witness of what was before the recorder came.
    calls: Pace | None = None
    #: When the newest collective was called, by its host's clock, and how long ago.
    newest_call: float | None = None
    newest_call_age: float | None = None
    #: By name: what the job calls it, and its ranks; nothing where the recorder is silent.
    groups: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    #: By name: the number of the newest collective that was called in the group.
    come: Mapping[str, int] = field(default_factory=dict)
    open_calls: tuple[tuple[object, ...], ...] = ()
    recorded: tuple[tuple[object, ...], ...] = ()
    stacks: Backtrace | None = None
    #: What could not be asked, and why.
    gaps: tuple[str, ...] = ()
    #: Of a rank that is alone: calls of backward in the step under way, and seconds in parts of it that have ended.
    micro_batches: int | None = None
    worked_s: float | None = None
    #: The send or receive that its stack is in, where no table has it.
    peer: Peer | None = None

    def is_ahead_of(self, earlier: Look) -> bool:
        """Return whether the rank has got on since an earlier look. What one of them could not ask is no progress."""
        newer = [(self.step, earlier.step), (self.newest_call, earlier.newest_call)]
        newer += [(self.micro_batches, earlier.micro_batches), (self.worked_s, earlier.worked_s)]
        newer += [(self.come[name], earlier.come[name]) for name in self.come if name in earlier.come]
        return any(now is not None and then is not None and now > then for now, then in newer)

    @property
    def first_call(self) -> str | None:
        """The earliest call that the rank is in; else its newest one, if that has failed."""
        for name, op, seq, *_ in self.recorded:
            return f"{op} {seq} of group {name}"
        for name, op, seq, _, peer, state in sorted(self.open_calls, key=lambda call: call[5] == "failed"):
            failed = " (failed)" if state == "failed" else ""
            return f"{op} with rank {peer}{failed}" if peer != -1 else f"{op} {seq} of group {name}{failed}"
        return None


def is_alone(targets: Collection[TargetInfo]) -> bool:
    """Return whether this is the whole job: one process, for which no other waits."""
    return len(targets) == 1 and all(target.world_size <= 1 for target in targets)


def look(timeout_s: float, *, alone: bool = False) -> Callable[[Client], Awaitable[Look]]:
    """The question for one look. Stacks are read from outside: a rank that holds its GIL shows them, too. A rank that
    is `alone` gets on with each part of a step; where others wait for it, that tells nothing of the job."""

    async def ask(client: Client) -> Look:
        gaps: list[str] = []

        async def rows(sql: str, within_s: float = timeout_s) -> Sequence[Sequence[object]]:
            try:
                told = await client.send(QueryResult, "POST", "/v1/query", QueryRequest(sql, timeout_s=within_s))
            except (NoAnswer, QueryFailed) as silence:
                gaps.append(silence.message)
                return ()
            return tuple(told.rows)

        async def of_recorder() -> tuple[Sequence[Sequence[object]], Sequence[Sequence[object]]]:
            within_s = min(timeout_s, RECORDER_S)
            groups = await rows(_LIVE_GROUPS, within_s)
            return groups, await rows(_LIVE_CALLS, within_s) if groups else ()

        async def current() -> Sequence[Sequence[object]]:
            within_s = min(timeout_s, RECORDER_S)
            request = QueryRequest(_CURRENT, timeout_s=within_s)
            try:
                return (await client.send(QueryResult, "POST", "/v1/query", request)).rows if alone else ()
            except (
                LimitReached,
                NoAnswer,
                QueryFailed,
            ):  # `of_recorder` tells that it is silent; or an older one
                return ()

        async def from_outside() -> tuple[Backtrace | None, str]:
            try:
                return await ask_stacks(client, outside=True), ""
            except ProbeError as silence:
                return None, silence.message

        async def of_rings() -> Sequence[Sequence[Sequence[object]]]:
            try:
                told = await client.send(QueryResult, "POST", "/v1/query", QueryRequest(_RINGS, timeout_s=timeout_s))
            except QueryFailed:  # an older recorder has not all of the columns
                return await asyncio.gather(*map(rows, _OF_RINGS))
            except NoAnswer as silence:
                gaps.append(silence.message)
                return ((),) * len(_OF_RINGS)
            return [_tuples(table) for table in told.rows[0]]

        told, (groups, recorded), under_way, (stacks, no_stacks) = await asyncio.gather(
            of_rings(), of_recorder(), current(), from_outside()
        )
        pace, called, open_calls, newest = told
        come = {str(name): _int(seq) for name, seq in newest}
        if gaps:  # it cannot answer, or has ended: what it left of its newest stall
            groups = await rows(_STALLED_GROUPS)
            recorded = await rows(_STALLED_CALLS) if groups else ()
            groups = groups or await rows(_KNOWN_GROUPS)
        history = await rows(_HISTORY, min(timeout_s, RECORDER_S)) if groups and not (pace and pace[0][0]) else ()
        if no_stacks:
            gaps.append(no_stacks)
        peer = None if gaps or any(_int(call[4]) >= 0 for call in open_calls) else await ask_peer(client, stacks)
        known = {str(name) for name, *_ in recorded}
        for name, _, seq, *_ in recorded:
            come[str(name)] = max(come.get(str(name), -1), _int(seq))
        for name, _, _, seq in groups:
            if str(name) not in known:  # with sends and receives in the same group it counts those as well
                come[str(name)] = max(come.get(str(name), -1), _int(seq))
        return Look(
            _int(pace[0][0]) if pace and pace[0][0] is not None else None,
            _pace(pace[0][1:]) if pace and pace[0][0] is not None else None,
            Pace(_float(history[0][0]), 0.0, _float(history[0][1]), _int(history[0][2]))
            if history and history[0][0] is not None
            else None,
            _float(called[0][0]) if called and called[0][0] is not None else None,
            _float(called[0][1]) if called and called[0][1] is not None else None,
            {str(name): (str(desc), ranks_in(str(ranks))) for name, desc, ranks, _ in groups},
            come,
            tuple(map(tuple, open_calls)),
            tuple(tuple(row) for row in recorded if row[4] != "completed"),
            stacks,
            tuple(dict.fromkeys(gaps)),
            _int(under_way[0][0]) if under_way else None,
            _float(under_way[0][1]) if under_way else None,
            peer,
        )

    return ask


async def look_from_outside(client: Client) -> Look:
    """Return the stacks of a process without a recorder, the one thing that it shows."""
    return Look(stacks=await ask_stacks(client, outside=True), gaps=("no recorder could start in it",))


def as_ranks(looks: Mapping[int, Look], waiting: Collection[int], failed: Collection[int] = ()) -> dict[int, Rank]:
    """The calls that each rank is in, as the analysis takes them. A rank that is not among the `waiting` (it has ended,
    or is stopped) has come as far as it has, and is in none of its calls; one among the `failed` is in the call that it
    has failed in. A call's time is that before the look."""
    members: dict[str, set[tuple[int, ...]]] = {}
    for seen in looks.values():
        for name, (_, ranks) in seen.groups.items():
            members.setdefault(name, set()).add(ranks)
    return {rank: _as_rank(rank, seen, members, rank in waiting, rank in failed) for rank, seen in looks.items()}


def _as_rank(
    rank: int, seen: Look, members: Mapping[str, set[tuple[int, ...]]], is_waiting: bool, has_failed: bool
) -> Rank:
    def group(name: object) -> Group:
        known = [ranks for ranks in members.get(str(name), ()) if rank in ranks]
        return Group(str(name), known[0] if known else (rank,))

    found: dict[tuple[str, int, int, str], Call] = {}
    for name, op, seq, age, state, shape, dtype, size, timeout, started in seen.recorded:
        found[str(name), _int(seq), -1, ""] = Call(
            group(name),
            _int(seq),
            str(op),
            0,
            has_started=bool(started) or state == "started",
            is_over=not is_waiting,
            inputs=_shapes(str(shape), _int(size)),
            dtypes=(str(dtype),) if dtype else (),
            called=-_float(age),
            timeout_s=_float(timeout) or None,
        )
    for name, op, seq, age, peer, state in seen.open_calls:
        if state == "failed" and not has_failed:
            continue
        other = _int(peer) if _int(peer) >= 0 else None
        place = (str(name), _int(seq), _int(peer), "" if other is None else str(op))
        if place not in found and (other is not None or _int(seq) >= 0):
            # gloo runs all sends and receives at once.
            batch = None if other is None else 0
            found[place] = Call(
                group(name), _int(seq), str(op), 0, is_over=not is_waiting, called=-_float(age), peer=other, batch=batch
            )
    if seen.peer is not None and (whole := _whole(seen)) is not None:
        op, other, in_group = seen.peer
        if other is None and len(seen.groups) == 1:
            other = in_group
        if other is not None:
            found[whole.name, -1, other, op] = Call(whole, -1, op, 0, is_over=not is_waiting, peer=other, batch=0)
    ordered = sorted(found.values(), key=lambda call: (call.called, call.seq))
    calls = tuple(replace(call, order=order) for order, call in enumerate(ordered))
    come = {group(name): newest for name, newest in seen.come.items() if newest >= 0}
    return Rank(rank, calls, {group(name): desc for name, (desc, _) in seen.groups.items()}, come)


def _whole(seen: Look) -> Group | None:
    """Return the largest group of a rank: the same one on both sides, of whatever group a send is."""
    groups = [Group(name, ranks) for name, (_, ranks) in seen.groups.items()]
    return max(groups, key=lambda group: (len(group.ranks), group.name), default=None)


def _tuples(table: object) -> Sequence[Sequence[object]]:
    """The rows of a table that came as a list of objects."""
    return [tuple(row.values()) for row in table if isinstance(row, dict)] if isinstance(table, list) else ()


def _pace(row: Sequence[object]) -> Pace:
    age, median, longest, num, last = row
    return Pace(_float(age), _float(median), _float(longest), _int(num), _float(last))


def _shapes(shape: str, num_bytes: int) -> Shapes:
    """The first tensor's shape; of several the bytes say whether the others are alike."""
    text, more, _ = shape.partition(" +")
    try:
        first = tuple(map(int, json.loads(text))) if text else ()
    except (ValueError, TypeError):
        first = ()
    return (first, (num_bytes,)) if more else (first,) if text else ()


def _int(value: object) -> int:
    return int(value) if isinstance(value, int | float | str) else -1


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float | str) else float("nan")
