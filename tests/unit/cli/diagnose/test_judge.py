"""Findings are put together, put in order, and shown below what explains them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from probe_agent.wire import TargetInfo
from probe_cli.diagnose.evidence import Evidence
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.judge import Diagnosis, diagnose
from probe_cli.diagnose.rule import Asked, Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.diagnose.rules import page, rules

TARGET = TargetInfo(
    pid=100, rank=0, local_rank=0, world_size=2, host="node1", uid=0, alive=True, state="running", step=7,
    step_age_s=0.1, age_s=9.0, command=("python", "train.py"), python="3.11.7", torch="2.13.0", version="0.1.0",
    how="planned", attached_at=0.0, folder="/nowhere", job="kfmcga", store="node1:29500",
)  # fmt: skip
TESTS = Path(__file__).parent / "rules"


def judge_share(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    for row in rows:
        if row["share"] is None:
            raise NoEvidence("no share")
        if row["share"] > limits["share"]:
            yield Finding(f"it takes {row['share']}", share=row["share"], since_step=row.get("since"))


def rule(name: str, explains: tuple[str, ...] = (), per_host: bool = False) -> Rule:
    limits = (Threshold("share", 0.1, "share"),)
    return Rule(name, "speed", "Does it?", "SELECT 1", of_each_rank(judge_share), limits, explains, per_host)


def told(rank: int, host: str = "node1", **shares: float | None) -> tuple[TargetInfo, Evidence]:
    rows = {name: [{"share": share, "since": rank + 5}] for name, share in shares.items()}
    return replace(TARGET, rank=rank, host=host), Evidence(rows, {}, ())


def names(diagnosis: Diagnosis) -> list[str]:
    return [finding.rule for finding in diagnosis.findings]


def test_ranks_with_the_same_finding_are_one_with_the_worst_ones_words() -> None:
    (found,) = diagnose([rule("a")], [told(0, a=0.2), told(1, a=0.6), told(2, a=0.0)], {}).findings

    assert (found.ranks, found.sentence, found.since_step) == ((0, 1), "it takes 0.6", 5)


def test_the_costliest_comes_first_and_what_it_explains_below_it() -> None:
    every = [rule("a"), rule("b", explains=("c",)), rule("c", explains=("d",)), rule("d")]

    found = diagnose(every, [told(0, a=0.3, b=0.2, c=0.9, d=0.8)], {})

    assert names(found) == ["a", "b"]
    assert [one.rule for one in found.findings[1].explains] == ["c"]
    assert [one.rule for one in found.findings[1].explains[0].explains] == ["d"]


@pytest.mark.parametrize(("effect", "headlines"), [(0.5, ["cause"]), (0.7, ["effect", "cause"])])
def test_a_rule_may_explain_only_what_costs_about_as_much(effect: float, headlines: list[str]) -> None:
    every = [replace(rule("cause", explains=("effect",)), explains_times=2.0), rule("effect")]

    assert names(diagnose(every, [told(0, cause=0.3, effect=effect)], {})) == headlines


def test_a_finding_of_another_rank_explains_nothing() -> None:
    every = [rule("cause", explains=("effect",)), rule("effect")]

    found = diagnose(every, [told(0, cause=0.5, effect=0.0), told(1, cause=0.0, effect=0.5)], {})

    assert sorted(names(found)) == ["cause", "effect"]


def test_what_cannot_be_judged_is_said_and_is_not_fine() -> None:
    found = diagnose([rule("a"), rule("b"), rule("c")], [told(0, a=None, b=0.0)], {})

    assert found.unjudged == {"a": "no share", "c": "it was not asked"}
    assert found.silent == ("b",)


def test_one_rank_that_can_tell_is_enough_to_judge() -> None:
    assert names(diagnose([rule("a")], [told(0, a=None), told(1, a=0.5)], {})) == ["a"]


def test_a_statement_that_failed_costs_its_own_rule() -> None:
    failed = (TARGET, Evidence({"b": [{"share": 0.5}]}, {"a": "no such column"}, ()))

    found = diagnose([rule("a"), rule("b")], [failed], {})

    assert found.unjudged == {"a": "no such column"}
    assert names(found) == ["b"]


def test_a_rule_of_the_host_is_asked_once_a_host() -> None:
    ranks = [told(0, a=0.5), told(1, a=0.6), told(2, "node2", a=0.7)]

    (found,) = diagnose([rule("a", per_host=True)], ranks, {}).findings

    assert found.ranks == (0, 2)


def test_thresholds_may_be_set() -> None:
    assert names(diagnose([rule("a")], [told(0, a=0.5)], {"a.share": 0.6})) == []


def test_what_does_not_apply_is_neither_fine_nor_unjudged() -> None:
    def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
        raise NotApplicable("no GPU")

    found = diagnose([replace(rule("a"), judge=judge)], [told(0, a=0.5)], {})

    assert (found.inapplicable, found.unjudged, found.silent) == ({"a": "no GPU"}, {}, ())


def test_certain_comes_before_possible() -> None:
    certain = Finding("", Certainty.CERTAIN, share=0.1)
    possible = Finding("", Certainty.POSSIBLE, share=0.3)

    assert certain.weight > possible.weight


@pytest.mark.parametrize("name", rules())
def test_a_rule_has_a_page_names_rules_that_exist_and_three_tests(name: str) -> None:
    one = rules()[name]
    of_file = (TESTS / f"test_{name.replace('-', '_')}.py").read_text()

    assert len(page(name).splitlines()) >= 3
    assert set(one.explains) <= set(rules())
    assert name not in one.explains
    assert one.question.endswith("?")
    assert of_file.count("\ndef test_") >= 3


def test_no_rule_explains_itself_by_way_of_others() -> None:
    def reached(name: str) -> set[str]:
        below = set(rules()[name].explains)
        return below.union(*map(reached, below)) if below else below

    assert not [name for name in rules() if name in reached(name)]


def test_what_is_suspected_is_shown_only_if_a_second_look_confirms_it() -> None:
    def suspect(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
        yield Finding("it may", Certainty.SUSPECTED)

    async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
        return [Finding("it does", Certainty.CERTAIN)] * len(found)

    seen = Rule("a", "speed", "Does it?", "SELECT 1", suspect, look=look)

    alone = diagnose([seen], [told(0, a=0.2)], {})
    with_job = diagnose([seen], [told(0, a=0.2)], {}, Job({}, 1.0))

    assert (names(alone), alone.silent) == ([], ("a",))
    assert [one.sentence for one in with_job.findings] == ["it does"]


def test_a_second_look_that_sees_too_little_cannot_judge() -> None:
    async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
        raise NoEvidence("no stack was seen")

    seen = replace(rule("a"), look=look)

    assert diagnose([seen], [told(0, a=0.5)], {}, Job({}, 1.0)).unjudged == {"a": "no stack was seen"}


def test_a_rule_that_fails_costs_no_other_one_and_says_whose_fault_it_is() -> None:
    broken = replace(rule("b"), judge=of_each_rank(lambda rows, limits: [Finding(str(1 / rows[0]["share"]))]))

    found = diagnose([rule("a"), broken], [told(0, a=0.6, b=0.0)], {})

    assert names(found) == ["a"]
    assert found.unjudged == {
        "b": "the rule itself failed, which is a fault of Probe: ZeroDivisionError: float division by zero"
    }
