"""Targets that have ended: which ones, which was the first, and how to query what they left.

Pure functions on what host servers have told of their targets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from probe_agent.errors import NoAnswer
from probe_agent.wire import TargetInfo
from probe_cli.endpoint import Endpoint, LocalProcess, TcpServer, ThisHost, UnixServer

__all__ = [
    "has_lost_peer",
    "has_timed_out",
    "in_order_of_end",
    "last_seen_at",
    "none_lives",
    "one_run",
    "rank_text",
    "target_at",
    "told_first",
]

#: At most this many are named.
MAX_NAMED = 16
#: Characters of an exception that are shown.
MAX_HOW = 120
#: An end that was not seen is dated by the recorder's last tick; ticks come every 0.25 s.
UNSEEN_S = 0.5
#: How far the clocks of two hosts may be apart.
CLOCKS_S = 0.1
#: What gloo and NCCL say when another rank has gone.
_LOST_PEER = re.compile(r"closed by peer|reset by peer|[Bb]roken pipe|remote process exited")
#: What gloo, NCCL and the store say when another rank has not come.
_TIMED_OUT = re.compile(r"[Tt]ime(?:d )?out")


def rank_text(target: TargetInfo) -> str:
    """Its rank as messages say it."""
    return "rank not known" if target.rank is None else f"rank {target.rank}"


def none_lives(targets: Sequence[TargetInfo], at: Endpoint | None = None) -> NoAnswer:
    """The error for a question to all living targets where none lives; `at` is the endpoint that led to them."""
    names = ", ".join(f"pid {target.pid} ({rank_text(target)})" for target in targets[:MAX_NAMED])
    names += ", …" if len(targets) > MAX_NAMED else ""
    where = "on this host" if at is None or isinstance(at, LocalProcess | ThisHost) else f"at {at}"
    return NoAnswer(
        "; ".join([f"no living target {where}: {len(targets)} ended: {names}", *told_first(targets)[-1:]]),
        f"query what they left, one or several: probe -t {target_at(at, targets[-1].pid)} query …",
    )


def told_first(targets: Iterable[TargetInfo], *, of_living_jobs: bool = False) -> list[str]:
    """For each job with ended ranks, a sentence: which one was the first, how it ended, and how sure that is; or only
    for jobs with a living rank."""
    said = []
    for ranks in _jobs(targets):
        ended = in_order_of_end(target for target in ranks if target.ended)
        is_wanted = not of_living_jobs or any(target.alive for target in ranks)
        if is_wanted and ranks[0].world_size > 1 and any(target.ended_badly for target in ended):
            said.append(_first(ended))
    return said


def in_order_of_end(ended: Iterable[TargetInfo]) -> list[TargetInfo]:
    """The first to end first. The connections of a killed process close before its end is seen, so a rank that raised
    because a connection was gone comes after one that ended for another reason at about the same time."""
    ordered = sorted(ended, key=last_seen_at)
    near = [target for target in ordered if last_seen_at(target) - last_seen_at(ordered[0]) <= UNSEEN_S]
    cause = next((target for target in near if not has_lost_peer(target)), None)
    return ordered if cause is None else [cause, *(target for target in ordered if target is not cause)]


def target_at(at: Endpoint | None, pid: int) -> Endpoint:
    """The endpoint of a target that `at` led to."""
    if isinstance(at, TcpServer | UnixServer) and not isinstance(at, ThisHost):
        return replace(at, rank=None, pid=pid, job=None)
    return LocalProcess(pid)


def one_run(targets: Iterable[TargetInfo], pid: int | None) -> list[TargetInfo]:
    """Of the ranks of a job that was started several times, those of the start that has `pid`, or of the last one."""
    runs = sorted(_jobs(targets), key=lambda ranks: max(map(last_seen_at, ranks)))
    return next((run for run in runs if any(target.pid == pid for target in run)), runs[-1] if runs else [])


def has_lost_peer(target: TargetInfo) -> bool:
    """Return whether it ended because another rank had gone."""
    return _LOST_PEER.search(target.ended) is not None


def has_timed_out(target: TargetInfo) -> bool:
    """Return whether it ended because it had waited for too long."""
    return _TIMED_OUT.search(target.ended) is not None


def last_seen_at(target: TargetInfo) -> float:
    """When it ended, or when it was last known to live, in seconds since 1970."""
    return target.ended_at or target.last_seen or 0.0


def _jobs(targets: Iterable[TargetInfo]) -> list[list[TargetInfo]]:
    """Grouped by job. A later job may use the same store: it begins where a rank appears a second time."""
    jobs: list[list[TargetInfo]] = []
    for target in sorted(targets, key=lambda target: target.attached_at):
        for job in jobs:
            same = (job[0].job, job[0].world_size) == (target.job, target.world_size)
            if same and target.rank not in [other.rank for other in job]:
                job.append(target)
                break
        else:
            jobs.append([target])
    return jobs


def _first(ended: list[TargetInfo]) -> str:
    first, others = ended[0], ended[1:]
    at = datetime.fromtimestamp(last_seen_at(first), timezone.utc).strftime("%H:%M:%S.%f")[:-3]
    who = f"{rank_text(first)} (pid {first.pid} on {first.host})"
    if not others:
        return f"{who} {_how(first)} at {at} UTC"
    gap = last_seen_at(others[0]) - last_seen_at(first)
    near = [other for other in others if 0 <= last_seen_at(other) - last_seen_at(first) < _doubt(first, other)]
    if near:
        also = ", ".join(map(rank_text, near))
        return f"{who} or {also} ended first, at {at} UTC, too close to tell apart; {rank_text(first)} {_how(first)}"
    if first.ended_at is None:
        return f"{who} was the first to end: last seen at {at} UTC, {gap:.1f} s before the next, {rank_text(others[0])}"
    how = f"{who} was the first to end: it {_how(first)} at {at} UTC"
    if gap <= 0:
        return f"{how}; {rank_text(others[0])} lost its connection, and {_how(others[0])}"
    return f"{how}, {gap:.3f} s before {rank_text(others[0])}, which {_how(others[0])}"


def _how(target: TargetInfo) -> str:
    return target.ended if len(target.ended) <= MAX_HOW else target.ended[: MAX_HOW - 1] + "…"


def _doubt(one: TargetInfo, other: TargetInfo) -> float:
    """How far apart two ends must be to be told apart, in seconds."""
    if one.host != other.host:
        return CLOCKS_S
    # An end that was seen is before one that was not, if that rank was alive afterwards.
    return UNSEEN_S if one.ended_at is None else 0.0
