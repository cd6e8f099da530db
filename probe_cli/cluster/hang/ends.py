"""Ranks that have ended: which one is to blame, or what the job hung in before.

A rank that raises because a call of it has timed out, or that a watchdog or a launcher kills, is the victim of the rank
that did not come: that it was the first to end says nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from probe_agent.wire import TargetInfo
from probe_cli.cluster.ranks.ended import has_lost_peer, has_timed_out, in_order_of_end, last_seen_at

from .calls import Rank
from .chain import Cause, Stop, stops
from .looks import Look, as_ranks
from .standstill import standstill

__all__ = ["Hung", "aborted_by_gloo", "first_to_blame", "hung_before", "stopped_or_ended"]


class Hung(NamedTuple):
    """What a job hung in before its ranks ended, and the ranks as they were then."""

    stop: Stop
    ranks: Mapping[int, Rank]


def hung_before(targets: Mapping[int, TargetInfo], looks: Mapping[int, Look], now: float) -> Hung | None:
    """Return what the job hung in when its first rank ended, if it did: nothing had moved for long, or a call had timed
    out, and what the ranks recorded tells for whom they waited. The first to end is no victim if it is the one that
    they waited for. `now` is in seconds since 1970."""
    ended = in_order_of_end(target for target in targets.values() if target.ended)
    if not any(target.ended_badly for target in ended):
        return None
    first = next(rank for rank, target in targets.items() if target is ended[0])
    gone = [rank for rank, target in targets.items() if target.ended]
    then = as_ranks(looks, targets, failed=gone)  # none of them had ended
    stop = next((stop for stop in stops(then) if stop.cause is not Cause.UNSEEN), None)
    if stop is None or (stop.cause is Cause.ABSENT and not all(_came_before(stop, then, rank) for rank in stop.ranks)):
        return None
    is_stalled = all(target.stall for target in targets.values())
    has_stood = has_timed_out(ended[0]) or standstill(looks, now - last_seen_at(ended[0]))[1]
    return Hung(stop, then) if is_stalled or (has_stood and first not in stop.ranks) else None


def _came_before(stop: Stop, ranks: Mapping[int, Rank], rank: int) -> bool:
    """Return whether it is known that this rank had come to the call before the one that it is missing in. The last
    calls of one that was killed may not have been recorded."""
    come = ranks[rank].come.get(stop.wait.group, 0) if rank in ranks else 0
    return come >= stop.wait.seq - 1


def first_to_blame(targets: Mapping[int, TargetInfo], living: Collection[int], others_wait: bool) -> set[int]:
    """Return the rank that was the first to end, if that is the reason. A job whose ranks have come to the end of their
    program, one after the other, has nobody to blame; nor has one whose ranks lost the connection to a living one."""
    ended = in_order_of_end(target for rank, target in targets.items() if rank not in living)
    badly = [target for target in ended if target.ended_badly]
    own = [target for target in ended if not has_lost_peer(target)]
    blamed = [target for target in own if target.ended_badly] or own
    return {rank for rank, target in targets.items() if target in blamed[:1]} if badly or others_wait else set()


def aborted_by_gloo(ranks: tuple[int, ...], targets: Mapping[int, TargetInfo]) -> list[str]:
    """Return why gloo may have aborted one of these ranks: it does so to one that receives more than it expects, which
    need not be the one with the wrong size."""
    has_aborted = any("SIGABRT" in targets[rank].ended for rank in ranks)
    lost = [rank for rank, target in targets.items() if "gloo" in target.ended and has_lost_peer(target)]
    return ["gloo may have aborted it, because the ranks differ in the sizes of a collective"] * bool(
        has_aborted and lost
    )


def stopped_or_ended(ranks: tuple[int, ...], targets: Mapping[int, TargetInfo], stopped: Collection[int]) -> str:
    """Return what has happened to these ranks, some of which a signal has stopped."""
    said = []
    for rank in ranks[:4]:
        target = targets[rank]
        named = f"rank {rank} (pid {target.pid} on {target.host})"
        if rank in stopped:
            said.append(f"{named} is stopped by a signal; resume it with: kill -CONT {target.pid}")
        else:
            said.append(f"{named} has ended" + (f": it {target.ended}" if target.ended else ""))
    return "; ".join(said)
