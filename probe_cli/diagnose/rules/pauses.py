"""A few steps take so long that the job spends much of its time in them.

A checkpoint, an evaluation, a log that is sent away, a dataset that is read anew: most steps are quick, and every
hundredth takes seconds. The phase in which these steps are longer tells which; the share is what could be saved. An
evaluation is meant, and told only where it takes a third of the time; a rollout is meant, and is judged by `generation-
dominates`, and so is a policy that acts: many calls without gradients, each far shorter than one of training. A step
whose forward and backward are longer has more to compute: a longer sequence, a longer episode; but a
thread that sleeps there computes nothing. It waits for a lock, a file, a socket, and is told so, unless the model is
called without gradients in these steps: a rollout waits for its environments. A server that sleeps between two calls
of its model waits for requests, which is none. The stacks of the training thread, read
for two seconds, tell the line where it waits, and what the other threads do meanwhile, if it pauses then. A rank that
spends its long steps in collectives while another one pauses only waits for that one. Pauses that take longer each time
go through all that was kept so far, such as a metric over every prediction since the start: of an evaluation that is
told, too, as a possible finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import ACTS, Asked, Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.diagnose.sampling import Stack, lines_of, meanwhile, stacks_of_a_pause, waits
from probe_cli.text import percent, seconds

__all__ = ["RULE"]

PHASES = ("data_wait", "forward", "backward", "optimizer", "evaluation", "generation", "other")
SQL = f"""
WITH recent AS (FROM python.steps WHERE step > (SELECT min(step) + 10 FROM python.steps) ORDER BY step DESC LIMIT 2000),
usual AS (
    SELECT count(*) AS steps, sum(duration) AS lasted, median(duration) AS usual,
        count(*) FILTER (backward > 0) AS trained,
        {", ".join(f"median(coalesce({name}, 0)) AS usual_{name}" for name in PHASES)} FROM recent
),
long AS (
    SELECT recent.*, rank() OVER (ORDER BY duration) AS place, ntile(4) OVER (ORDER BY step) AS quarter
    FROM recent, usual
    WHERE duration > greatest(5 * usual, usual + 0.2)
),
samples AS (
    SELECT period, period - cpu_training - run_delay AS slept, EXISTS (FROM long
        WHERE long.ts > samples.ts - to_seconds(period) AND long.ts - to_seconds(duration) < samples.ts) AS is_long
    FROM process.samples AS samples, (SELECT min(ts) AS began, max(ts) AS ended FROM recent)
    WHERE samples.ts BETWEEN began AND ended AND run_delay IS NOT NULL
)
SELECT usual.usual, usual.steps, usual.lasted, usual.trained, of_long.*, of_samples.*, gaps.*, {ACTS} AS acts,
    (SELECT sum(wait) FROM python.collectives WHERE step IN (SELECT step FROM long)) AS waited
FROM usual,
    (SELECT count(*) AS pauses, median(duration) AS pause, min(step) AS since, sum(duration - usual.usual) AS lost,
        corr(step, place) AS order_of_length, median(duration) FILTER (quarter = 1) AS first,
        median(duration) FILTER (quarter = 4) AS last,
        {", ".join(f"sum({name} - usual_{name}) AS {name}" for name in PHASES)} FROM long, usual) AS of_long,
    (SELECT sum(slept) FILTER (is_long) AS slept, sum(period) FILTER (is_long) AS seen,
        coalesce(sum(slept) FILTER (NOT is_long) / sum(period) FILTER (NOT is_long), 0) AS usual_slept
        FROM samples) AS of_samples,
    (SELECT median(gap) AS every FROM (SELECT step - lag(step) OVER (ORDER BY step) AS gap FROM long)) AS gaps
"""
ADVICE = {
    "evaluation": "evaluate less often, on fewer batches, or in a job of its own",
    "other": "write checkpoints in the background (torch.distributed.checkpoint.async_save), and less often",
    "data_wait": "keep the loader's workers between epochs: persistent_workers=True, and a larger prefetch_factor",
}
#: How often models were called without gradients, how long that took, and how long the usual forward of a step takes.
CALLS = """
SELECT (SELECT coalesce(sum(without_gradients), 0) FROM torch.evaluations) AS blocks, sum(evaluation) AS lasted,
    count(*) FILTER (evaluation > 0) AS evaluated, median(forward) FILTER (forward > 0) AS forward FROM python.steps
"""
#: Calls of a step, and the time of one as a share of the usual forward, from which on and up to which a policy acts.
MANY, SHORT = 50, 0.25
OWN_CODE = "the job's own code, before the model is called"
GROWS = "keep sums in place of all that was seen since the start: running totals of a metric, a list that is emptied"
SLEEPS = (
    "it waits for a lock that another thread holds, for a file, a socket or a process: shorten what is done meanwhile"
)


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    own = [one for one in asked if not any(_waits(row) for row in one.rows)]
    pause = any(row["pauses"] and row["pauses"] >= limits["pauses"] for one in own for row in one.rows)
    return of_each_rank(judge_one)(own if pause else asked, limits)


def _waits(row: Row) -> bool:
    """Whether a rank spends most of the time lost in its long steps waiting for others."""
    return bool(row["lost"]) and (row["waited"] or 0.0) > 0.5 * row["lost"]


def _sleeps(row: Row) -> bool:
    """Return whether the training thread slept in the long steps, and called no model without gradients in them."""
    if row["slept"] is None or max(row["evaluation"] or 0.0, row["generation"] or 0.0) > 0.02 * row["lost"]:
        return False
    beside = row["usual_slept"] * max(0.0, row["seen"] - row["lost"])
    return bool(row["slept"] - beside >= 0.7 * row["lost"])


def _grow(row: Row, limits: Limits) -> bool:
    """Return whether each long step takes longer than the one before."""
    if row["pauses"] < limits["growing"] or (row["order_of_length"] or 0.0) < limits["order"]:
        return False
    return bool(row["last"] >= limits["growth"] * row["first"])


def _computes_no_more(row: Row) -> bool:
    """Return whether backward is as long as usual in steps whose forward is longer, and no model is called without
    gradients in them: what takes longer is the job's own code between two steps."""
    beside = max(row["evaluation"] or 0.0, row["generation"] or 0.0)
    return bool(row["trained"] and beside <= 0.02 * row["lost"] and (row["backward"] or 0.0) <= 0.1 * row["lost"])


def _may_wait_for_requests(row: Row) -> bool:
    """Return whether the thread slept in half of the long steps, or nothing is known of that."""
    if row["slept"] is None:
        return True
    return bool(row["slept"] - row["usual_slept"] * max(0.0, row["seen"] - row["lost"]) >= 0.5 * row["lost"])


def judge_one(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    row = rows[0] if rows else None
    if row is None or row["usual"] is None or row["steps"] < limits["steps"]:
        raise NoEvidence(f"fewer than {limits['steps']:.0f} steps are recorded: ask again later")
    share = (row["lost"] or 0.0) / row["lasted"]
    if row["pauses"] < limits["pauses"] or share < limits["share"]:
        return
    phase = max(PHASES, key=lambda name: row[name] or 0.0)
    if (row[phase] or 0.0) < 0.6 * row["lost"] or phase == "backward":
        return  # longer in all phases: the process was stopped or starved
    if phase == "other" and not row["trained"] and _may_wait_for_requests(row):
        return
    grow = _grow(row, limits)
    sleeps = phase == "forward" and _sleeps(row)
    if phase == "forward" and not sleeps and not (grow and _computes_no_more(row)):
        return
    is_meant = phase == "evaluation" and share < limits["evaluation"]
    if phase == "generation" or (phase == "evaluation" and row["acts"]) or (is_meant and not grow):
        return
    often = ""
    if row["every"]:
        often = f"about every {row['every']:.0f} steps " if row["every"] >= 2 else "several times in a row "
    yield Finding(
        f"{often}a step takes {seconds(row['pause'])} instead of {seconds(row['usual'])}, most of it in {phase}"
        f"{', where the thread sleeps' if sleeps else ', before the model is called' if phase == 'forward' else ''}:"
        f" {percent(share)} of the time{', longer each time' * grow}",
        Certainty.POSSIBLE if is_meant else Certainty.LIKELY,
        cost_s=row["lost"] / row["steps"],
        share=share,
        where=phase if phase != "forward" or sleeps else OWN_CODE,
        since_step=row["since"],
        evidence=(
            f"{row['pauses']} of {row['steps']} steps, {seconds(row['lost'])} lost in them",
            *([f"the first took {seconds(row['first'])}, the last {seconds(row['last'])}"] if grow else []),
        ),
        advice=(
            *([GROWS] if grow else []),
            *([ADVICE[phase]] if phase in ADVICE else []),
            *([SLEEPS] if sleeps else []),
            "see the stack while it lasts: `probe PID backtrace`, or the whole: `probe PID profile --cpu 30s`",
        ),
        try_first="probe PID profile --cpu 30s",
    )


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    return [
        await _with_line(job, one) if one.where == "forward" else one
        for one in found
        if one.where != "evaluation" or not await _acts(job, one.ranks[0])
    ]


async def _acts(job: Job, rank: int) -> bool:
    """Return whether what looks like an evaluation is a policy that acts in its environments."""
    for row in await job.rows(CALLS, rank):
        if row["evaluated"] and row["forward"] and row["blocks"] >= MANY * row["evaluated"]:
            return bool(row["lasted"] / row["blocks"] <= SHORT * row["forward"])
    return False


def _stands_still(stack: Stack) -> bool:
    """Return whether the thread waits for something, or sleeps because the job says so."""
    is_asleep = bool(stack.frames) and stack.state != "running" and "sleep(" in (stack.frames[0].source or "")
    return is_asleep or waits(stack)


async def _with_line(job: Job, one: Finding) -> Finding:
    stacks = await stacks_of_a_pause(job, one.ranks[0])
    if not (lines := lines_of(stacks, _stands_still)):
        return one
    line, part = lines[0]
    seen = f"{percent(part)} of {len(stacks)} stacks just now: {line}"
    return replace(one, where=line, evidence=(*one.evidence, seen, *meanwhile(stacks)))


RULE = Rule(
    "pauses",
    "speed",
    "Does the job pause in some steps?",
    SQL,
    judge,
    (
        Threshold("share", 0.15, "share of the time that the pauses take"),
        Threshold("evaluation", 0.33, "share of the time that evaluations take"),
        Threshold("pauses", 3, "pauses needed to judge"),
        Threshold("growing", 8, "pauses needed to tell that they take longer each time"),
        Threshold(
            "growth", 1.3, "how many times as long as the first quarter of them the last one takes, if they grow"
        ),
        Threshold("order", 0.7, "correlation of a pause's step with its place by length, from which they grow"),
        Threshold("steps", 50, "steps needed to judge"),
    ),
    explains=("slower-than-best", "python-bound"),
    explains_times=2.0,
    look=look,
    on_host=True,
)
