"""The ranks spend their time in collectives.

The time counts that the training thread was blocked in wait(). It holds both the transfer and the wait for the rank
that comes last: `probe … compare` tells one from the other. What is left when no rank is late is the network, or too
little work between two exchanges. Where most of it are sends and receives, a pipeline is not filled.

DDP's reducer waits in C++, at the end of backward, and no row tells how long. The gradients that backward has last are
in its last call, so nothing is left to compute after it: the time from that call to the end of backward counts. A step
of several micro-batches needs its calls once; where each of them comes as often as there are micro-batches, no_sync()
is missing, and as much is waited in each of them.

On a host where tasks wait for a core all the time, ranks wait for one another while one of them has none. Told there is
only what is left without the time in which the others waited for a core.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Asked, Limits, Rule, Threshold
from probe_cli.text import percent, seconds

__all__ = ["RULE"]

SQL = """
WITH calls AS (SELECT step, start, op, phase, wait, bytes, shape, peer, seen_by FROM python.collectives),
last_calls AS (
    SELECT step, max(start) AS start FROM calls WHERE seen_by <> 'python' AND phase = 'backward' GROUP BY step),
known AS (  -- these rows come later than others
    SELECT max(step) AS step FROM last_calls
    WHERE start > (SELECT max(ts) FROM python.steps) - INTERVAL 1 MINUTE),
recent AS (FROM python.steps WHERE step <= coalesce((SELECT step FROM known), step) ORDER BY step DESC LIMIT 100),
extent AS (
    SELECT min(step) AS first, max(step) AS last, count(*) AS steps, sum(duration) AS lasted,
        min(micro_batches) AS micro_batches, sum(backward) AS backward
    FROM recent),
buckets AS (  -- of the reducer, how often each comes
    SELECT count(*) AS calls FROM calls, extent
    WHERE seen_by <> 'python' AND phase = 'backward' AND step BETWEEN first AND last GROUP BY shape, bytes),
reducer AS (
    SELECT coalesce(sum(greatest(0, least(backward, epoch(ts - start) - optimizer - other))), 0) AS waited
    FROM recent JOIN last_calls USING (step))
SELECT any_value(steps) AS steps, any_value(lasted) AS lasted, any_value(micro_batches) AS micro_batches,
    any_value(backward) AS backward, (SELECT min(calls) FROM buckets) AS least_calls,
    any_value(reducer.waited) AS in_reducer, coalesce(sum(wait), 0) + any_value(reducer.waited) AS waited,
    count(op) AS calls, sum(bytes) AS bytes, mode(op) AS op,
    coalesce(sum(wait) FILTER (op ILIKE '%send%' OR op ILIKE '%recv%'), 0) AS between_two,
    list_sort(list_distinct(list(peer) FILTER (op ILIKE '%send%'))) AS sends_to,
    list_sort(list_distinct(list(peer) FILTER (op ILIKE '%recv%'))) AS receives_from,
    quantile_disc(bytes, 0.75) AS usual_bytes,
    (SELECT sum(run_delay) / sum(period) FROM (FROM process.samples ORDER BY ts DESC LIMIT 30)) AS delay,
    (SELECT avg(cpu_some) FROM host.pressure
        WHERE scope = 'host' AND ts > (SELECT max(ts) - INTERVAL 1 MINUTE FROM python.steps)) AS pressure
FROM extent, reducer LEFT JOIN calls ON step BETWEEN first AND last
"""


OF_COLLECTIVES = (
    "exchange less often: gradient accumulation under no_sync(), larger batches a rank",
    "fewer and larger calls: a larger bucket_cap_mb in DDP, FSDP units of several layers",
    "look at operations and bandwidth: `probe -t PID --all compare --by collective`",
)
UNSYNCED = (
    "exchange gradients once a step: `with model.no_sync():` around the backward of all micro-batches but the last"
)
OF_NUMBERS = (
    "exchange numbers for the log every N steps: in Lightning, self.log(..., sync_dist=True) is one exchange for each",
    "put what is exchanged in one step into one tensor: torch.stack(values), one all_reduce",
    "look at operations and bandwidth: `probe -t PID --all compare --by collective`",
)
OF_PIPELINES = (
    "fill the pipeline: several times as many micro-batches as stages",
    "let stages work on different micro-batches at the same time: a 1F1B or interleaved schedule",
    "make the stages equally long: `probe -t PID --all compare`",
)
OF_RINGS = (
    "send and receive the next block before computing with the one that is there, and wait for it only then",
    "give each rank more to compute for a block: longer parts of the sequence, or fewer ranks in the ring",
    "look at operations and bandwidth: `probe -t PID --all compare --by collective`",
)


#: Ranks whose waits for a core are added up: of thousands, small ones would add up to much.
MOST_DELAYED = 4
#: A call of no more is one of a few numbers.
FEW_BYTES = 1024


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    if all(one.world_size < 2 for one in asked):
        raise NotApplicable("one rank: there are no collectives")
    told = [(one, one.rows[0]) for one in asked if one.rows and (one.rows[0]["steps"] or 0) >= limits["steps"]]
    if not told:
        raise NoEvidence(f"no rank has recorded {limits['steps']:.0f} steps: ask again later")
    shares = {one.rank: _waited(row) / row["lasted"] for one, row in told}
    least_rank, least = min(shares.items(), key=lambda item: item[1])
    row = next(row for one, row in told if one.rank == least_rank)
    is_again = _times(row) > 1
    if least < limits["unsynced" if is_again else "share"]:
        return  # a rank that hardly waits is the one that the others wait for
    is_busy = any((row["pressure"] or 0.0) >= limits["pressure"] for _, row in told)
    if is_busy and not is_again and least - _delayed(told, least_rank) < limits["share"]:
        raise NoEvidence("tasks of a host wait for a core all the time, and so the ranks for one another")
    cost = _waited(row) / row["steps"]
    told_where, advice = "in collectives", OF_COLLECTIVES
    if row["between_two"] > row["waited"] / 2:
        is_ring = all(_is_in_ring(row) for _, row in told)
        told_where = f"for its neighbours in the {'ring' if is_ring else 'pipeline'}"
        advice = OF_RINGS if is_ring else OF_PIPELINES
    again, of_numbers = "", ""
    num_calls = row["calls"] / row["steps"]
    if advice is OF_COLLECTIVES and num_calls >= limits["calls"] and (row["usual_bytes"] or math.inf) <= FEW_BYTES:
        of_numbers = f", in {num_calls:.0f} calls a step, most of them of a few numbers"
        advice = OF_NUMBERS
    if advice is OF_COLLECTIVES and is_again:
        again = f"gradients are exchanged in each of {row['micro_batches']} micro-batches of a step: "
        advice = (UNSYNCED, *advice[1:])
    yield Finding(
        f"{again}every rank waits {told_where} at least {percent(least)} of the time{of_numbers}",
        Certainty.LIKELY,
        cost_s=cost,
        share=least,
        ranks=tuple(sorted(shares)),
        evidence=(
            f"rank {least_rank} waits least: {seconds(cost)} a step in {num_calls:.3g} calls"
            f" ({row['op']}, {(row['bytes'] or 0) / row['steps'] / 2**20:.3g} MiB a step)",
            *(
                [
                    f"from DDP's last call to the end of backward: {seconds(row['in_reducer'] / row['steps'])}"
                    + (", and as much in each micro-batch" if again else "")
                ]
                if row["in_reducer"]
                else []
            ),
            f"waits: {min(shares.values()):.0%} to {max(shares.values()):.0%} of the steps, over {row['steps']} steps",
        ),
        advice=advice,
        try_first="with model.no_sync(): loss.backward()" if again else "probe -t PID --all compare --by collective",
    )


def _delayed(told: Sequence[tuple[Asked, Mapping[str, Any]]], rank: int) -> float:
    """The share of the time that the other ranks may have waited for a core by turns."""
    delays = sorted((_delay(row) for one, row in told if one.rank != rank), reverse=True)
    return float(sum(delays[:MOST_DELAYED]))


def _delay(row: Mapping[str, Any]) -> float:
    return 1.0 if row["delay"] is None else float(row["delay"])


def _times(row: Mapping[str, Any]) -> int:
    """How often DDP exchanges the gradients in a step: once for each micro-batch if all of its calls come so often,
    else once. Some calls of the first and the last step may have no row."""
    micro_batches = row["micro_batches"] or 1
    return micro_batches if (row["least_calls"] or 0) >= 0.9 * micro_batches * row["steps"] else 1


def _waited(row: Mapping[str, Any]) -> float:
    """How long the rank waited in collectives. Of several exchanges in a step only the last is known: the others count
    as much."""
    again = (_times(row) - 1) * row["in_reducer"]
    return float(row["waited"] + min(again, max(0.0, (row["backward"] or 0.0) - row["in_reducer"])))


def _is_in_ring(row: Mapping[str, Any]) -> bool:
    """Whether a rank sends to one other and receives from another one. Stages in the middle of a pipeline do both with
    both, its ends with one."""
    to, by = row["sends_to"] or (), row["receives_from"] or ()
    return len(to) == len(by) == 1 and to != by


RULE = Rule(
    "collectives-dominate",
    "speed",
    "Do all ranks spend their time in collectives?",
    SQL,
    judge,
    (
        Threshold("share", 0.30, "share of the time that the rank that waits least spends waiting"),
        Threshold("unsynced", 0.10, "the same where gradients are exchanged in each micro-batch: no_sync() saves most"),
        Threshold("pressure", 0.9, "share of the time in which tasks wait for a core, from which a host is busy"),
        Threshold("calls", 20, "calls a step from which it is told that most are of a few numbers"),
        Threshold("steps", 20, "steps needed to judge"),
    ),
)
