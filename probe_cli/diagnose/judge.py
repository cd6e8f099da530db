"""Runs the rules over the evidence, and puts the findings in order: how sure, how costly, what explains what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from probe_agent.wire import TargetInfo

from .evidence import Evidence
from .finding import Finding, NoEvidence, NotApplicable, merged
from .rule import Asked, Limits, Rule

__all__ = ["Diagnosis", "diagnose"]


@dataclass(frozen=True)
class Diagnosis:
    """What was found, what could not be judged and why, what did not apply, and the rules that found nothing."""

    findings: tuple[Finding, ...]
    unjudged: Mapping[str, str]
    inapplicable: Mapping[str, str]
    silent: tuple[str, ...]


def diagnose(rules: Iterable[Rule], told: Sequence[tuple[TargetInfo, Evidence]], overrides: Limits) -> Diagnosis:
    """Judge `told`, a target and its evidence each."""
    found: list[Finding] = []
    unjudged: dict[str, str] = {}
    inapplicable: dict[str, str] = {}
    silent: list[str] = []
    chosen = list(rules)
    for rule in chosen:
        asked = _asked(rule, told)
        if not asked:
            unjudged[rule.name] = next(
                (each.failed[rule.name] for _, each in told if rule.name in each.failed), "it was not asked"
            )
            continue
        try:
            of_rule = merged(replace(one, rule=rule.name) for one in rule.judge(asked, rule.limits(overrides)))
        except NoEvidence as missing:
            unjudged[rule.name] = str(missing)
        except NotApplicable as reason:
            inapplicable[rule.name] = str(reason)
        else:
            found += of_rule
            silent += [] if of_rule else [rule.name]
    return Diagnosis(tuple(_in_order(found, chosen)), unjudged, inapplicable, tuple(silent))


def _asked(rule: Rule, told: Sequence[tuple[TargetInfo, Evidence]]) -> list[Asked]:
    hosts: set[str] = set()
    asked = []
    for target, each in told:
        if rule.name not in each.rows or (rule.per_host and target.host in hosts):
            continue
        hosts.add(target.host)
        rank = -1 if target.rank is None else target.rank
        asked.append(Asked(rank, target.host, target.pid, target.world_size, each.rows[rule.name]))
    return asked


def _in_order(found: Sequence[Finding], rules: Iterable[Rule]) -> list[Finding]:
    """Those that no other one explains, each with those that it does below it, the weightiest first."""
    explains = {rule.name: rule.explains for rule in rules}
    by_weight = sorted(found, key=lambda finding: -finding.weight)
    below: dict[int, list[Finding]] = {}
    explained: set[int] = set()
    for finding in by_weight:
        cause = next((one for one in by_weight if finding.rule in explains[one.rule] and _meet(one, finding)), None)
        if cause is not None:
            below.setdefault(id(cause), []).append(finding)
            explained.add(id(finding))

    def with_below(finding: Finding) -> Finding:
        return replace(finding, explains=tuple(map(with_below, below.get(id(finding), ()))))

    return [with_below(finding) for finding in by_weight if id(finding) not in explained]


def _meet(one: Finding, other: Finding) -> bool:
    """Whether they are of a common rank; no ranks are all of them."""
    return not one.ranks or not other.ranks or bool(set(one.ranks) & set(other.ranks))
