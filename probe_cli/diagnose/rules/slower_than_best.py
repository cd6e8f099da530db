"""The job is slower than it was.

The newest steps are held against the best ones in a row that are still recorded, those of two seconds but 20 at least.
Something has changed since, such as a throttled clock; or steps take longer and longer, as with a list that is walked
in each of them, hooks that are added, a graph that is never cut. What takes longer because the inputs of the model have
grown is no fault; where they grow with each step it is a curriculum, or a context that is never cut: possible. Noise is
not told: most of the newest steps have to be slower than most of the best ones were, as many steps before must be
slower too, and the time must not have gone to waiting for a core, which is the finding of another rule, nor to loader
workers and other ranks on a host where tasks wait for a core most of the time. Steps before a resume in the same
process, and those of an optimizer that is gone, as in a sweep, are another job's; those that Probe itself traced took
longer for that, and those of the last three seconds may share the cores with the command that asks.

Where forward, backward and the optimizer's step take longer alike, it is hardly the job's code that has changed: a
clock, or neighbours on the same cores and memory. The finding is a possible one then, and says so. Else the stacks of
the training thread, read over some steps, tell the lines that it is in now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import ELEMENTS, Asked, Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.diagnose.sampling import lines_of, stacks_of
from probe_cli.text import percent, seconds

__all__ = ["RULE"]

PHASES = ("data_wait", "forward", "backward", "optimizer", "evaluation", "generation", "other")
COMPUTING = ("forward", "backward", "optimizer")
SQL = f"""
WITH sized AS (SELECT greatest(20, ceil(2 / greatest(median(duration), 1e-6))::BIGINT) AS size FROM python.steps),
windows AS (
    SELECT step // size AS w, min(step) AS first, max(step) AS last, count(*) AS steps,
        min(ts) AS began, max(ts) AS ended,
        median(duration) AS usual, quantile_cont(duration, 0.25) AS quick, quantile_cont(duration, 0.75) AS slow,
        median(batch_size) AS batch_size, {", ".join(f"median(coalesce({name}, 0)) AS {name}" for name in PHASES)}
    FROM python.steps, sized WHERE traced IS NOT TRUE AND step > (SELECT min(step) + 10 FROM python.steps)
        AND ts > (SELECT coalesce(max(ts), '-infinity') FROM python.checkpoints
            WHERE kind = 'load' AND has_optimizer AND error IS NULL)
        AND step >= (SELECT coalesce(max(step) FILTER (new_optimizer), 0) FROM python.steps)
        AND ts < (SELECT max(ts) - INTERVAL 3 SECONDS FROM python.steps)
    GROUP BY step // size HAVING count(*) >= 0.8 * any_value(size)
),
delayed AS (
    SELECT windows.*, (
        SELECT sum(run_delay) / sum(period) FROM process.samples
        WHERE ts > began AND ts - to_microseconds((period * 1e6)::BIGINT) < ended) AS delay,
        (SELECT max(num_children) FROM process.samples WHERE ts BETWEEN began AND ended) AS children,
        (SELECT avg(cpu_some) FROM host.pressure
            WHERE scope = 'host' AND ts BETWEEN began AND ended + INTERVAL 5 SECONDS) AS pressure,
        (SELECT median({ELEMENTS}) FROM python.torch_trace WHERE stage = 'forward' AND phase = 'train'
            AND NOT contains(module, '.') AND step BETWEEN first AND last) AS elements
    FROM windows
)
SELECT newest, before, best, compared.*, (SELECT count(*) FROM torch.compile WHERE step > best.last) AS compilations
FROM (SELECT delayed AS newest FROM delayed ORDER BY w DESC LIMIT 1),
     (SELECT delayed AS before FROM delayed ORDER BY w DESC LIMIT 1 OFFSET 1),
     (SELECT delayed AS best FROM delayed ORDER BY usual LIMIT 1),
     (SELECT count(*) AS windows, count(*) FILTER (usual < 1.15 * least) AS near_best,
        CASE WHEN regr_slope(usual, w) > 0 THEN regr_r2(usual, w) ELSE 0 END AS steadiness,
        min(first) FILTER (usual > 1.1 * least AND first > last_of_best) AS since
      FROM windows, (SELECT min(usual) AS least, arg_min(last, usual) AS last_of_best FROM windows)) AS compared
"""


#: Ranks whose waits for a core are added up: of thousands, small ones would add up to much.
MOST_DELAYED = 4
MAX_LINES = 3
#: What to look for where steps take longer and longer.
_GROWS = {
    "backward": "cut the graph between steps: detach() what is carried over, such as a hidden state, and no"
    " retain_graph=True",
    "input": "if longer inputs are meant, as in a curriculum, nothing is wrong; else cut what is appended to them: a"
    " history, a context",
    "other": "look for what gets longer with each step: a list that is walked, hooks that are registered again",
}


#: Where all phases take longer alike.
_OF_THE_MACHINE = "look at the machine, not at the code: clocks, temperature, other jobs on the host"


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    """Judge each rank. Where the ranks wait for each other, the time that one has waited for a core is lost to all."""
    rows = [one.rows[0] for one in asked if one.rows]
    delays = [((row["newest"] or {}).get("delay") or 0.0, (row["best"] or {}).get("delay") or 0.0) for row in rows]
    added = sorted((max(0.0, now - then) for now, then in delays), reverse=True)
    longest = max((now for now, _ in delays), default=0.0)
    return of_each_rank(partial(_judge, longest, sum(added[:MOST_DELAYED]), len(asked)))(asked, limits)


def _judge(delay: float, added: float, num_ranks: int, rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows or rows[0]["windows"] < limits["windows"]:
        raise NoEvidence(
            f"fewer than {limits['windows']:.0f} windows of two seconds, 20 steps at least, are recorded that Probe did"
            " not trace: ask again later"
        )
    newest, before, best = rows[0]["newest"], rows[0]["before"], rows[0]["best"]
    slower = newest["usual"] / best["usual"] - 1 if best["usual"] else 0.0
    lasts = before["usual"] >= (1 + slower / 2) * best["usual"] or rows[0]["since"] == before["first"]
    grows = rows[0]["windows"] > limits["windows"] and (rows[0]["steadiness"] or 0.0) >= limits["steadiness"]
    if slower < limits["slower"] or newest["quick"] <= best["slow"]:
        return
    if not grows and (not lasts or rows[0]["near_best"] < 2):
        return
    lost = added * newest["usual"]
    if lost >= limits["delay"] * (newest["usual"] - best["usual"]) or delay >= limits["busy"]:
        return  # the host took the cores away
    sizes = [(newest[name], best[name]) for name in ("elements", "batch_size") if newest[name] and best[name]]
    more = max((now / then - 1 for now, then in sizes), default=0.0)
    is_expected = more >= limits["inputs"] * slower
    if is_expected and not grows:
        return  # there is more to compute: longer sequences, larger pictures, more samples
    grown = max(PHASES, key=lambda name: newest[name] - best[name])
    is_shared = num_ranks > 1 or (grown == "data_wait" and newest["children"])
    if is_shared and (newest["pressure"] or 0.0) >= limits["pressure"]:
        return  # and those of the workers, or of other ranks
    cost = newest["usual"] - best["usual"]
    is_alike = not grows and _is_alike(newest, best, limits)
    yield Finding(
        f"a step takes {percent(slower)} longer than in this run's best window, "
        + ("all phases alike" if is_alike else f"most of it in {grown}")
        + (f", and grows with each step{', as the input of the model does' if is_expected else ''}" if grows else ""),
        Certainty.POSSIBLE if is_expected or is_alike else Certainty.LIKELY,
        cost_s=cost,
        share=cost / newest["usual"],
        since_step=rows[0]["since"],
        evidence=(
            f"median of steps {newest['first']} to {newest['last']}: {seconds(newest['usual'])};"
            f" of {best['first']} to {best['last']}: {seconds(best['usual'])}",
            f"{grown}: {seconds(best[grown])} then, {seconds(newest[grown])} now",
            *_changed(rows[0]),
        ),
        advice=(
            *([_OF_THE_MACHINE] if is_alike else []),
            *([_GROWS["input" if is_expected else "backward" if grown == "backward" else "other"]] if grows else []),
            "put the change beside what happened then: evaluation, checkpoint, recompilation, another job on the host",
            "look where the time goes now: `probe PID profile --cpu 5s`",
            'look at the clocks: `probe PID query "FROM gpu.samples ORDER BY ts DESC LIMIT 20"`',
        ),
        try_first="probe PID profile --cpu 5s",
    )


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    """Tell the lines of the first rank that is slower, unless it is the machine that has changed."""
    told = list(found)
    for at, one in enumerate(told[:1]):
        if _OF_THE_MACHINE in one.advice:
            continue
        lines = lines_of(await stacks_of(job, one, bool), bool)
        now = [f"{percent(part)} of the stacks now: {line}" for line, part in lines if part >= limits["line"]]
        told[at] = replace(one, evidence=(*one.evidence, *now[:MAX_LINES]))
    return told


def _is_alike(newest: Row, best: Row, limits: Limits) -> bool:
    """Return whether the phases that compute take longer by much the same factor, and hardly any other phase does."""
    computing = [name for name in COMPUTING if best[name] >= 0.05 * best["usual"]]
    if len(computing) < 2:
        return False
    more = [newest[name] / best[name] - 1 for name in computing]
    grown = sum(newest[name] - best[name] for name in computing)
    is_most = grown >= 0.6 * (newest["usual"] - best["usual"])
    return bool(is_most and min(more) >= limits["alike"] * max(more))


def _changed(row: Row) -> Iterable[str]:
    """What else is different since."""
    for name, what in (("batch_size", "samples a step"), ("elements", "elements of the model's input")):
        then, now = row["best"][name], row["newest"][name]
        if then and now and then != now:
            yield f"{what}: {then:,.0f} then, {now:,.0f} now"
    if row["compilations"]:
        yield f"torch.compile compiled {row['compilations']} times since"


RULE = Rule(
    "slower-than-best",
    "speed",
    "Is the job slower than in its own best window?",
    SQL,
    judge,
    (
        Threshold("slower", 0.25, "how much longer the median step takes than in the best window"),
        Threshold("windows", 3, "windows of two seconds, and 20 steps at least, needed to judge"),
        Threshold("steadiness", 0.9, "R² of a line through the windows from which steps are said to grow"),
        Threshold("inputs", 0.4, "growth of the model's inputs, as a part of the step's, from which it is expected"),
        Threshold("alike", 0.5, "least growth of a phase, as a part of the largest, from which they grow alike"),
        Threshold(
            "busy",
            0.2,
            "part of the time that a rank now waits for a core, from which steps cannot be compared",
        ),
        Threshold(
            "delay", 0.4, "part of the added time that was spent waiting for a core, from which the host is blamed"
        ),
        Threshold(
            "pressure", 0.9, "share of the time in which tasks wait for a core, from which others are not judged"
        ),
        Threshold("line", 0.15, "part of the stacks from which a line is told"),
    ),
    look=look,
    explains=("python-bound",),
    explains_times=2.0,
)
