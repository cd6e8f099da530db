"""From the question `compare` to what is written: asks every rank, has them compared, and prints the verdict.

Runs in the CLI.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from time import time
from typing import TYPE_CHECKING

from .session import Session, remark

if TYPE_CHECKING:
    from probe_agent.wire import TargetInfo

    from .cluster.ask import Answers
    from .cluster.compare.comparison import Comparison
    from .cluster.compare.facts import Facts

__all__ = ["show_comparison"]

#: A rank is asked a few questions, one after the other, and for its clock.
GRACE_S = 5.0


def show_comparison(session: Session, *, by: str, num_steps: int, format_: str, timeout_s: float) -> int:
    """Print the comparison of all ranks. The exit code says who did not answer, or that there is not enough data."""
    from .cluster.compare.by import load
    from .cluster.compare.facts import Who
    from .cluster.compare.gather import question

    way = load(by)
    members = session.ranks_of_job()
    whose = dict(members.answered)
    answers = session.ask_members(
        question(way.NEEDS, num_steps, timeout_s), timeout_s=timeout_s + GRACE_S, members=members
    )
    facts = [
        replace(told, who=Who(member.rank, member.info.host, member.info.pid))
        for endpoint, told in answers.answered
        for member in (whose[endpoint],)
    ]
    asked = [member.info for member in whose.values()]
    comparison = way.compare(facts, num_steps) if len(facts) > 1 else _too_few(asked, answers)
    notes = [*comparison.notes, *_notes(facts)]
    _show(comparison, facts, notes, answers, format_)
    not_enough = comparison.verdict.state == "not enough data"
    return answers.exit_code or int(not_enough)


def _too_few(asked: Sequence[TargetInfo], answers: Answers[Facts]) -> Comparison:
    """One rank or none has answered: what it takes to compare, instead of a table of nothing."""
    from .cluster.compare.comparison import Comparison, Verdict

    told = "not enough data: it takes two ranks to compare, and "
    notes: list[str] = []
    if answers.num_asked == 1 and asked:
        target = asked[0]
        told += f"pid {target.pid} was asked alone"
        its_steps = f"probe {target.pid} query 'SELECT * FROM python.steps ORDER BY duration DESC'"
        notes += [f"try: {_others_of(target)}", f"try: its own steps: {its_steps}"]
    else:
        told += f"{len(answers.answered)} of {answers.num_asked} answered"
    return Comparison(Verdict("not enough data", told), (), (), (), tuple(notes))


def _others_of(target: TargetInfo) -> str:
    if target.world_size > 1:
        return f"all {target.world_size} ranks of its job: probe -t {target.pid} --all compare"
    return f"it is a job of its own (world size 1); name another target beside it: probe -t {target.pid} -t … compare"


def _notes(facts: list[Facts]) -> list[str]:
    """What is to be known about those who were compared, whatever was compared."""
    from .cluster.compare.standstill import standstill

    notes = [f"{fact.who} could not tell {gap}" for fact in facts for gap in fact.gaps]
    ranks = [fact.who.rank for fact in facts]
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if twice:
        notes.append(f"several targets say they are rank {twice[0]}: are these of one job? name them with -t")
    if (stands := standstill(facts, time())) is not None:
        notes.append(stands)
    return notes


def _show(comparison: Comparison, facts: list[Facts], notes: list[str], answers: Answers[Facts], format_: str) -> None:
    from .cluster.compare.clocks import one_clock_a_host
    from .cluster.compare.words import seconds
    from .render import Sheet
    from .render.show import show

    clocks = {fact.who.host: fact.clock for fact in one_clock_a_host(facts) if fact.clock is not None and facts[1:]}
    sheet = Sheet(comparison.columns, comparison.types, comparison.rows)
    if format_ == "json":
        whole = {
            "verdict": asdict(comparison.verdict),
            "ranks": list(sheet.records()),
            "clocks": [{"host": host, **asdict(clock)} for host, clock in clocks.items()],
            "notes": notes,
            "unanswered": [
                {"endpoint": str(endpoint), "message": error.message, "hint": error.hint}
                for endpoint, error in answers.failed
            ],
        }
        json.dump(whole, sys.stdout, indent=1, ensure_ascii=False)
        print(flush=True)
        return
    if format_ == "table":
        print(comparison.verdict.sentence + "\n" * bool(sheet.rows), flush=True)
    else:
        remark(comparison.verdict.sentence)
    if sheet.rows or (format_ != "table" and sheet.columns):
        show(sheet, format_, remark)
    for note in notes:
        remark(note)
    for host, clock in clocks.items():
        remark(
            f"clock of {host}: {seconds(abs(clock.offset))} {'ahead of' if clock.offset > 0 else 'behind'} ours,"
            f" give or take {seconds(clock.uncertainty)}"
        )
