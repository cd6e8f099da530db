"""Runs the rules over the evidence, and puts the findings in order: how sure, how costly, what explains what."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from probe_agent.errors import ProbeError
from probe_agent.wire import TargetInfo
from probe_cli.client.loop import run

from .evidence import Evidence
from .finding import Certainty, Finding, NoEvidence, NotApplicable, merged
from .gpu_load import NAME, beside_gpu
from .job import Job, rank_of
from .rule import Asked, Limits, Question, Rule

__all__ = ["Diagnosis", "asked_of", "diagnose"]


#: What a rule found, or why it cannot tell.
Judged = list[Finding] | NoEvidence | NotApplicable


@dataclass(frozen=True)
class Diagnosis:
    """What was found, what could not be judged and why, what did not apply, and the rules that found nothing."""

    findings: tuple[Finding, ...]
    unjudged: Mapping[str, str]
    inapplicable: Mapping[str, str]
    silent: tuple[str, ...]


def diagnose(
    rules: Iterable[Rule], told: Sequence[tuple[TargetInfo, Evidence]], overrides: Limits, job: Job | None = None
) -> Diagnosis:
    """Judge `told`, a target and its evidence each. With `job` the rules that look a second time do so."""
    chosen = list(rules)
    judged = {rule.name: _judged(rule, told, overrides) for rule in chosen}
    again = [rule for rule in chosen if rule.look is not None and isinstance(judged[rule.name], list)]
    if job is not None and any(judged[rule.name] for rule in again):
        judged |= run(_looked(job, again, judged, overrides))
    loads = {target.rank: one.rows[NAME] for target, one in told if target.rank is not None and NAME in one.rows}
    found: list[Finding] = []
    unjudged: dict[str, str] = {}
    inapplicable: dict[str, str] = {}
    silent: list[str] = []
    by_name = {rule.name: rule for rule in chosen}
    for name, of_rule in judged.items():
        if isinstance(of_rule, NoEvidence):
            unjudged[name] = str(of_rule)
        elif isinstance(of_rule, NotApplicable):
            inapplicable[name] = str(of_rule)
        else:
            rule = by_name[name]
            shown = [replace(one, rule=name) for one in of_rule if one.certainty is not Certainty.SUSPECTED]
            shown = merged(beside_gpu(shown, loads, rule.limits(overrides)) if rule.on_host else shown)
            found += shown
            silent += [] if shown else [name]
    return Diagnosis(tuple(_in_order(found, chosen)), unjudged, inapplicable, tuple(silent))


def _judged(rule: Rule, told: Sequence[tuple[TargetInfo, Evidence]], overrides: Limits) -> Judged:
    asked = asked_of(rule, told)
    if not asked:
        return NoEvidence(
            next((one.failed[rule.name] for _, one in told if rule.name in one.failed), "it was not asked")
        )
    try:
        return list(rule.judge(asked, rule.limits(overrides)))
    except Exception as failure:  # noqa: BLE001  # at the border: the other rules still judge
        return _not_judged(failure)


def _not_judged(failure: Exception) -> NoEvidence | NotApplicable:
    """Why a rule says nothing. One that fails costs its own judgement, and no other's."""
    if isinstance(failure, NoEvidence | NotApplicable):
        return failure
    if isinstance(failure, ProbeError):
        return NoEvidence(failure.message)
    return NoEvidence(f"the rule itself failed, which is a fault of Probe: {type(failure).__name__}: {failure}")


async def _looked(
    job: Job, rules: Iterable[Rule], judged: Mapping[str, Judged], overrides: Limits
) -> dict[str, Judged]:
    """The second looks of the rules that found or suspect something, all at once."""

    async def look(rule: Rule) -> Judged:
        found = judged[rule.name]
        assert rule.look is not None
        assert isinstance(found, list)
        try:
            return list(await rule.look(job, found, rule.limits(overrides)))
        except Exception as failure:  # noqa: BLE001  # at the border, too
            return _not_judged(failure)

    wanted = [rule for rule in rules if judged[rule.name]]
    return dict(zip((rule.name for rule in wanted), await asyncio.gather(*map(look, wanted)), strict=True))


def asked_of(rule: Question, told: Sequence[tuple[TargetInfo, Evidence]]) -> list[Asked]:
    """The targets that have answered a question, with their rows; of questions about hosts, one of each host."""
    hosts: set[str] = set()
    asked = []
    for target, each in told:
        if rule.name not in each.rows or (rule.per_host and target.host in hosts):
            continue
        hosts.add(target.host)
        asked.append(Asked(rank_of(target), target.host, target.pid, target.world_size, each.rows[rule.name]))
    return asked


def _in_order(found: Sequence[Finding], rules: Iterable[Rule]) -> list[Finding]:
    """Those that no other one explains, each with those that it does below it, the weightiest first."""
    by_name = {rule.name: rule for rule in rules}
    by_weight = sorted(found, key=lambda finding: -finding.weight)
    below: dict[int, list[Finding]] = {}
    explained: set[int] = set()
    for finding in by_weight:
        cause = next((one for one in by_weight if _explains(by_name[one.rule], one, finding)), None)
        if cause is not None:
            below.setdefault(id(cause), []).append(finding)
            explained.add(id(finding))

    def with_below(finding: Finding) -> Finding:
        return replace(finding, explains=tuple(map(with_below, below.get(id(finding), ()))))

    return [with_below(finding) for finding in by_weight if id(finding) not in explained]


def _explains(rule: Rule, cause: Finding, finding: Finding) -> bool:
    costs_too_much = (finding.share or 0.0) > rule.explains_times * (cause.share or 1.0)
    return finding.rule in rule.explains and _meet(cause, finding) and not costs_too_much


def _meet(one: Finding, other: Finding) -> bool:
    """Whether they are of a common rank; no ranks are all of them."""
    return not one.ranks or not other.ranks or bool(set(one.ranks) & set(other.ranks))
