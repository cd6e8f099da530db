"""The model that generates does not get the trained weights any more.

Rollouts come from an engine with a copy of the policy, into which the weights are loaded after an update. Where that
stops, as by a version that wraps around or a condition that is never met again, all goes on: samples come from a policy
that is older and older, and what is learned of them is worth less and less. A copy of the trained model that generates,
has been changed at some times and is not while the other one is, although by its own rate it should have been many
times, gets them no more. An engine in another process is not seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.copies import SQL, copies
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

#: Between two looks, and how many there are at most.
PAUSE_S, NUM_LOOKS = 0.5, 12


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    pairs = _pairs(rows)
    if not pairs:
        raise NotApplicable("no copy of a trained model generates in this process")
    for engine, trained in pairs:
        if engine["versions"] >= limits["loads"] and trained["versions"] > engine["versions"]:
            yield Finding("an engine may not get the weights", Certainty.SUSPECTED, where=engine["module"])


def _pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return each model that generates and that no optimizer holds, with the trained one that it is a copy of."""
    return [(engine, trained) for engine, trained in copies(rows) if engine["generates"]]


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    """See whether the engine's parameters change while the trained ones do."""
    told: list[Finding] = []
    unclear: list[str] = []
    for one in found:
        first: tuple[Row, Row] | None = None
        missed = 0.0
        for _ in range(NUM_LOOKS):
            pairs = _pairs(await job.rows(SQL, one.ranks[0]))
            now = next((pair for pair in pairs if pair[0]["module"] == one.where), None)
            if now is None or (first is not None and now[0]["versions"] != first[0]["versions"]):
                break
            first = first or now
            updates = now[1]["versions"] - first[1]["versions"]
            missed = now[0]["versions"] * updates / now[1]["versions"]
            if missed >= limits["missed"]:
                told.append(_finding(one, now, updates, missed))
                break
            await asyncio.sleep(PAUSE_S)
        else:
            unclear.append(f"by its rate {one.where} would have got new weights {missed:.1f} times: too few to tell")
    if unclear and not told:
        raise NoEvidence(unclear[0])
    return told


def _finding(suspected: Finding, now: tuple[Row, Row], updates: int, missed: float) -> Finding:
    engine, trained = now
    return Finding(
        f"{engine['module']} generates with old weights: it does not get those of {trained['module']} any more",
        Certainty.LIKELY,
        share=1.0,
        ranks=suspected.ranks,
        where=engine["module"],
        evidence=(
            f"{updates} updates of {trained['module']} meanwhile, and no change of {engine['module']}",
            f"its parameters have been changed {engine['versions']:,} times in {trained['versions']:,} updates: as"
            f" often as before that would be {missed:.0f} times",
        ),
        advice=(
            "look at what decides whether the engine takes new weights: a version, a flag, an exception that is caught",
            "let the engine say which version it holds, and log it beside the rewards",
        ),
        try_first="engine.load_state_dict(policy.state_dict())",
    )


RULE = Rule(
    "engine-weights-stale",
    "generation",
    "Does the model that generates get the trained weights?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("loads", 5, "changes of its parameters from which a copy is one that gets the trained weights"),
        Threshold("missed", 8, "changes that should have come meanwhile, by its own rate"),
    ),
    is_live=True,
    look=look,
)
