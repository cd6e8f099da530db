"""The model that generates does not get the trained weights any more.

Rollouts come from an engine with a copy of the policy, into which the weights are loaded after an update. Where that
stops, as by a version that wraps around or a condition that is never met again, all goes on: samples come from a policy
that is older and older, and what is learned of them is worth less and less. A copy of the trained model that generates,
has been changed at some times and is not while the other one is, although by its own rate it should have been many
times, gets them no more. Or it has never got any, as where the names of the weights do not match and all are passed
over: no copy of the trained model has changed, and the rollouts are not the trained model's own. An engine in another
process is not seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.diagnose.copies import SQL as COPIES
from probe_cli.diagnose.copies import as_large, copies, updates_without_change
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

#: With whether the job learns from rollouts, and whether a model makes them that is not trained.
SQL = f"""
SELECT copies.*, (SELECT coalesce(max(rollout), 0) > 0 FROM python.steps) AND EXISTS (
    SELECT module FROM python.torch_trace WHERE stage = 'forward' AND NOT contains(module, '.') GROUP BY module
    HAVING bool_or(phase = 'generate') AND NOT bool_or(phase = 'train')) AS others_generate
FROM ({COPIES}) AS copies
"""
#: Between two looks, and how many there are at most.
PAUSE_S, NUM_LOOKS = 0.5, 12


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    pairs = _pairs(rows)
    for engine, trained in pairs:
        if engine["versions"] >= limits["loads"] and trained["versions"] > engine["versions"]:
            yield Finding("an engine may not get the weights", Certainty.SUSPECTED, where=engine["module"])
            return
    unchanged = _never_changed(rows, limits)
    if not pairs and not unchanged:
        raise NotApplicable("no copy of a trained model generates in this process")
    for engine, trained in unchanged:
        yield Finding(
            f"{engine['module']} seems to generate with the weights that it began with: it gets none of"
            f" {trained['module']}",
            Certainty.SUSPECTED,
            share=1.0,
            where=engine["module"],
            evidence=(
                f"{trained['module']} was changed {trained['versions']:,} times, the copy ({engine['place']})"
                f" {engine['most']:,} times, as its weights were made",
                "the rollouts are made by a model that is called in no training step",
            ),
            advice=(
                "compare the names of the weights that are handed over with those of the engine: a prefix (net.,"
                " module., _orig_mod.) makes none of them match",
                "have it fail where a name does not match: load_state_dict(state, strict=True)",
                "if it is a teacher that is to stay as it is, all is well",
            ),
            try_first="engine.load_state_dict(policy.state_dict())",
        )


def _never_changed(rows: Sequence[Row], limits: Limits) -> list[tuple[Row, Row]]:
    """Return a copy of a trained model that may be what makes the rollouts, if no such copy has ever changed."""
    pairs = [pair for pair in as_large(rows) if pair[0]["others_generate"]]
    if any(copy["most"] >= limits["loads"] for copy, _ in pairs):
        return []
    return [pair for pair in pairs if pair[1]["versions"] >= limits["updates"]][:1]


def _pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Return each model that generates and that no optimizer holds, with the trained one that it is a copy of."""
    return [(engine, trained) for engine, trained in copies(rows) if engine["generates"]]


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    """See whether the engine's parameters change while the trained ones do."""
    told: list[Finding] = []
    unclear: list[str] = []
    for one in found:
        if one.evidence:
            told += await _still_unchanged(job, one, limits)
            continue
        first: tuple[Row, Row] | None = None
        missed = 0.0
        for _ in range(NUM_LOOKS):
            pairs = _pairs(await job.rows(COPIES, one.ranks[0]))
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


async def _still_unchanged(job: Job, one: Finding, limits: Limits) -> list[Finding]:
    """Confirm that no copy of the trained model changes, whichever of them makes the rollouts."""
    rank = one.ranks[0]
    pairs = list(as_large(await job.rows(COPIES, rank)))
    watched = [
        await updates_without_change(job, rank, copy["module"], trained["module"], limits["watched"])
        for copy, trained in pairs
    ]
    if not watched or not all(watched):
        return []
    seen = f"its values stayed as they are in {min(watched):,} updates that were watched"
    return [replace(one, certainty=Certainty.POSSIBLE, evidence=(*one.evidence, seen))]


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
        Threshold("updates", 200, "updates of the trained model from which a copy should have been changed"),
        Threshold("watched", 20, "updates in which the values of such a copy are watched"),
    ),
    is_live=True,
    look=look,
)
