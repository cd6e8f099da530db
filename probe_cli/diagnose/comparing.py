"""The comparison of ranks of `probe … compare`, for the rules of ranks that hold the job up: once for all of them.

Runs in the CLI on its event loop, for every job of several ranks: where they wait for each other within a phase, as in
a layer that is split among them or in DDP's backward, that phase takes all of them equally long whoever is slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.cluster.compare.by import WAYS
from probe_cli.cluster.compare.clocks import clocks_of
from probe_cli.cluster.compare.comparison import Comparison
from probe_cli.cluster.compare.explain import GRACE_S, explained
from probe_cli.cluster.compare.facts import Who
from probe_cli.cluster.compare.gather import question
from probe_cli.cluster.compare.questions import NUM_STEPS, Extent, num_steps_of
from probe_cli.text import seconds

from .finding import Certainty, Finding, NoEvidence, NotApplicable
from .job import Job
from .rule import Asked, Limits, Threshold

__all__ = ["SQL", "THRESHOLDS", "blamed", "comparison_of", "suspect"]

#: Seconds for which stacks of a named rank and of a peer are sampled, from outside.
WATCH_S = 3
#: Put to each rank: how many of its steps can be compared, how long one is, and in how many it trains.
SQL = f"""
SELECT count(*) AS steps, avg(duration) AS step, count(*) FILTER (backward > 0) AS trained
FROM (FROM python.steps ORDER BY step DESC LIMIT {NUM_STEPS})
"""
THRESHOLDS = (Threshold("steps", 20, "steps needed to judge"),)


def suspect(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    """A suspicion of every job of several ranks, for the comparison to judge; where one rank alone trains, it is of
    that rank. Raises NotApplicable for one rank, NoEvidence for too few steps."""
    if all(one.world_size < 2 for one in asked):
        raise NotApplicable("one rank")
    known = {one.rank: one.rows[0] for one in asked if one.rows and one.rows[0]["steps"] >= limits["steps"]}
    if len(known) < 2:
        raise NoEvidence(
            f"fewer than two ranks have recorded {limits['steps']:.0f} steps: ask all of them (--all), later"
        )
    training = [rank for rank, row in known.items() if row["trained"]]
    alone = tuple(training) if len(training) == 1 else ()
    yield Finding(
        "ranks may differ", Certainty.SUSPECTED, cost_s=max(row["step"] for row in known.values()), ranks=alone
    )


def blamed(found: Finding, comparison: Comparison) -> Finding:
    """Return a finding with whom and what the comparison blames, its cost, and how much was compared."""
    verdict = comparison.verdict
    extent = f"{verdict.num_steps} steps of {seconds(verdict.step or 0.0)}"
    return replace(
        found,
        sentence=verdict.sentence,
        certainty=Certainty.CERTAIN,
        cost_s=verdict.cost,
        share=verdict.share,
        ranks=verdict.ranks,
        where=", ".join(text for text in (verdict.where, verdict.module, verdict.line) if text),
        since_step=verdict.since,
        evidence=(f"{extent} compared, from the waits of all ranks",),
    )


async def comparison_of(job: Job, suspected: Sequence[Finding]) -> Comparison:
    """Whom the job waits for, with the module and the line of the named rank. Raises NoEvidence where too few ranks
    answered or that cannot be told."""
    return await job.once("comparison", lambda: _comparison(job, suspected[0].cost_s))


async def _comparison(job: Job, step_s: float | None) -> Comparison:
    who = {
        endpoint: Who(target.rank, target.host, target.pid)
        for endpoint, target in job.targets.items()
        if target.rank is not None
    }
    clocks = await clocks_of({job.targets[endpoint].host: endpoint for endpoint in who})
    num_steps = num_steps_of(step_s, len(who))
    extent = Extent(num_steps, len(who), job.seconds_asked)
    asked = question(WAYS["step"].needs, extent, job.timeout_s, {at: job.targets[at] for at in who})
    told = await job.ask(asked, who, timeout_s=job.timeout_s + GRACE_S)
    facts = [
        replace(one, who=who[at], clock=clocks.get(who[at].host), roles=job.targets[at].roles)
        for at, one in told.items()
    ]
    if len(facts) < 2:
        raise NoEvidence("fewer than two ranks told of their collectives")
    comparison = WAYS["step"].compare(facts, num_steps)
    if comparison.verdict.state == "not enough data":
        raise NoEvidence(comparison.verdict.sentence.removeprefix("not enough data: "))
    if comparison.study is None:
        return comparison
    known = {who[at]: (at, job.targets[at]) for at in who}
    return await explained(comparison, comparison.study, known, extent, WATCH_S, job.timeout_s)
