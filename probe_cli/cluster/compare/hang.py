"""Hangs: no rank has ended a step for long, and two looks a moment apart find each rank where it was.

If no rank has recorded a step, the job may have hung before the attach: then the newest collective in torch's Flight
Recorder must be long ago.

The collectives tell for whom the job waits: the ranks of a group that have not reached the one in which others wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from probe_agent.errors import ProbeError, QueryFailed
from probe_agent.wire import QueryRequest, QueryResult, TargetInfo
from probe_cli.client import Client
from probe_cli.text import ranks_text, seconds, sum_up

from .comparison import Verdict
from .facts import Facts, Who
from .questions import ranks_in

__all__ = ["BETWEEN_S", "LONG_S", "Open", "Progress", "hang", "look", "silence_s", "standstill_s"]

#: No step for so long, for so many steps' time, and for so many times the longest of the steps that are known.
LONG_S, LONG_STEPS, LONGEST = 10.0, 10.0, 2.0
#: Of so few collectives it is not known how long the job usually takes between them; a job that begins may take this.
FEW_CALLS, LONG_START_S = 10, 300.0
#: Between the two looks.
BETWEEN_S = 2.0

_OPEN = (
    'SELECT "group", op, seq, epoch(start), {peer}, arg_max(state, ts) AS newest FROM python.collectives'
    " WHERE start > (SELECT max(start) FROM python.collectives) - INTERVAL 1 HOUR"
    " GROUP BY ALL HAVING newest IN ('waiting', 'launched') ORDER BY ALL"
)
_NEWEST = "SELECT (SELECT max(step) FROM python.steps), (SELECT epoch(max(start)) FROM python.collectives)"
_HISTORY = (
    "SELECT epoch(max(ts)), coalesce(max(gap), 0.0), count(*) FROM"
    " (SELECT ts, epoch(ts) - epoch(lag(ts) OVER (ORDER BY ts)) AS gap FROM torch.flight_recorder)"
)
_GROUPS = (
    "SELECT \"group\", coalesce(nullif(group_desc, 'undefined'), ''), last_enqueued, coalesce(last_op, ''), ranks"
    " FROM torch.process_groups"
)


@dataclass(frozen=True)
class Open:
    """A call that is not over."""

    group: str
    op: str
    seq: int
    start: float
    #: The other end of a send or receive; -1 where it is not known.
    peer: int = -1


@dataclass(frozen=True)
class Progress:
    """How far a rank has come."""

    step: int | None = None
    newest_call: float | None = None
    open_calls: tuple[Open, ...] = ()
    #: Group -> what it is called, the number of its newest collective, what that is, and its ranks.
    groups: Mapping[str, tuple[str, int, str, tuple[int, ...]]] = field(default_factory=dict)
    #: Of the collectives that Flight Recorder has: when the newest was called, the longest time between two, how many.
    history: tuple[float, float, int] | None = None


def standstill_s(facts: Sequence[Facts], now: float) -> float | None:
    """For how long no rank has ended a step, if that is long; `now` is by our clock, in seconds since 1970."""
    ended, durations = [], []
    for fact in facts:
        if fact.steps:
            ended.append(float(fact.steps["ended"].max()) - (fact.clock.offset if fact.clock is not None else 0.0))
            durations.append(fact.steps["duration"])
    if not ended:
        return None
    age = now - max(ended)
    usual = median(float(median(values.tolist())) for values in durations)
    longest = max(float(values.max()) for values in durations)
    return age if age >= max(LONG_S, LONG_STEPS * usual, LONGEST * longest) else None


def silence_s(looks: Mapping[Who, Progress], offsets: Mapping[Who, float], now: float) -> float | None:
    """For how long no rank has called a collective, if that is long; `offsets` are those of the ranks' clocks."""
    known = {who: progress.history for who, progress in looks.items() if progress.history is not None}
    if not known:
        return None
    age = now - max(newest - offsets.get(who, 0.0) for who, (newest, _, _) in known.items())
    longest = max(gap for _, gap, _ in known.values())
    is_long = max(LONG_S, LONGEST * longest) if max(num for _, _, num in known.values()) >= FEW_CALLS else LONG_START_S
    return age if age >= is_long else None


def look(timeout_s: float, *, with_history: bool) -> Callable[[Client], Awaitable[Progress]]:
    """The question how far a rank has come; the history takes its recorder up to 35 ms of the GIL."""

    async def ask(client: Client) -> Progress:
        async def rows(sql: str) -> Sequence[Sequence[object]]:
            return (await client.send(QueryResult, "POST", "/v1/query", QueryRequest(sql, timeout_s=timeout_s))).rows

        ((step, newest_call),) = await rows(_NEWEST)
        try:
            waiting = await rows(_OPEN.format(peer="coalesce(peer, -1) AS peer"))
        except QueryFailed:
            waiting = await rows(_OPEN.format(peer="-1 AS peer"))  # an older recorder
        open_calls = tuple(
            Open(str(row[0]), str(row[1]), _int(row[2]), _float(row[3]), _int(row[4])) for row in waiting
        )
        groups, history = {}, None
        try:
            for name, desc, number, op, ranks in await rows(_GROUPS):
                groups[str(name)] = (str(desc), _int(number), str(op), ranks_in(str(ranks)))
            if with_history:
                ((newest, gap, num),) = await rows(_HISTORY)
                history = None if newest is None else (_float(newest), _float(gap), _int(num))
        except ProbeError:
            pass  # its recorder does not answer: its rings do
        return Progress(
            None if step is None else _int(step),
            None if newest_call is None else _float(newest_call),
            open_calls,
            groups,
            history,
        )

    return ask


def hang(
    targets: Mapping[Who, TargetInfo],
    before: Mapping[Who, Progress],
    after: Mapping[Who, Progress],
    stands_s: float,
    *,
    has_steps: bool = True,
) -> Verdict | None:
    """The verdict on a job that has stood still for `stands_s`, of two looks at its ranks; None if one of them has
    moved between the looks, or none lives. Without recorded steps no collective was called for so long."""
    if not any(target.alive for target in targets.values()) or not after:
        return None
    if any(_has_moved(before[who], now) for who, now in after.items() if who in before):
        return None
    waits = _waits(after)
    waiting = {rank for _, present, _ in waits for rank in present}
    absent = sorted({rank for _, _, missing in waits for rank in missing} - waiting)
    what = "ended a step" if has_steps else "called a collective"
    said = [f"no rank has {what} for {seconds(stands_s)}"]
    said += [f"{_ranks(present)} in {place}, which {_have(missing)} not reached" for place, present, missing in waits]
    said += [text for who, target in sorted(targets.items()) if (text := _odd(who, target, who in after))]
    whole = max((target.world_size for target in targets.values()), default=0)
    unknown = sorted(set(range(whole)) - {who.rank for who in targets})
    if unknown:
        said.append(f"rank{'s' if unknown[1:] else ''} {ranks_text(unknown)} did not answer, or ended")
    stopped = [who.rank for who, target in targets.items() if not target.alive or target.state == "stopped"]
    return Verdict(
        "hangs",
        f"the job hangs: {sum_up(said, 6)}",
        ranks=tuple(dict.fromkeys([*sorted(stopped), *absent])),
        where=waits[0][0] if waits else None,
        value=stands_s,
        evidence="two looks",
    )


def _has_moved(before: Progress, after: Progress) -> bool:
    was, now = ((each.step, each.newest_call, each.history) for each in (before, after))
    return was != now or any(
        after.groups[name][1] != known[1] for name, known in before.groups.items() if name in after.groups
    )


def _waits(ranks: Mapping[Who, Progress]) -> list[tuple[str, list[int], list[int]]]:
    """What ranks wait in, which do, and which have not come: of each group, the collective that some have come to."""
    names: dict[str, tuple[str, tuple[int, ...]]] = {}
    come: dict[str, dict[int, tuple[int, str]]] = {}
    for who, progress in ranks.items():
        for group, (desc, number, op, members) in progress.groups.items():
            names[group] = (desc, members)
            come.setdefault(group, {})[who.rank] = (number, op)
        for call in progress.open_calls:
            if call.seq >= 0:
                known = come.setdefault(call.group, {}).get(who.rank, (-1, ""))
                come[call.group][who.rank] = max(known, (call.seq, call.op))
    found = []
    for group, numbers in come.items():
        newest, op = max(numbers.values())
        desc, members = names.get(group, ("", ()))
        present = sorted(rank for rank, (number, _) in numbers.items() if number == newest)
        missing = sorted((set(members) or {who.rank for who in ranks}) - set(present))
        if missing and newest >= 0:
            title = f"{op or 'collective'} {newest} of group {group}" + (f" ({desc})" if desc else "")
            found.append((title, present, missing))
    waiting = {who.rank for who, progress in ranks.items() if any(call.seq < 0 for call in progress.open_calls)}
    waiting |= {rank for _, present, _ in found for rank in present}
    for who, progress in ranks.items():
        for call in progress.open_calls:
            if call.seq < 0 and call.peer >= 0 and call.peer not in waiting:
                way = "to" if call.op == "send" else "from"
                found.append((f"{call.op} {way} rank {call.peer}", [who.rank], [call.peer]))
    return found


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} waits" if len(ranks) == 1 else f"ranks {ranks_text(ranks)} wait"


def _have(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {ranks_text(ranks)} have"


def _odd(who: Who, target: TargetInfo, has_answered: bool) -> str:
    """What is odd about its process; empty if nothing is."""
    named = f"{who} (pid {who.pid} on {who.host})"
    if not target.alive:
        return f"{named} has ended" + (f": it {target.ended}" if target.ended else "")
    if target.state == "stopped":
        return f"{named} is stopped by a signal; resume it with: kill -CONT {who.pid}"
    return "" if has_answered else f"{named} did not answer a second time"


def _int(value: object) -> int:
    return int(value) if isinstance(value, int | float | str) else -1


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float | str) else float("nan")
