"""`probe … compare`: the ranks side by side, and for whom the job waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from time import time

import click

from probe_agent.wire import TargetInfo
from probe_cli.client.loop import run
from probe_cli.cluster.compare.by import WAYS
from probe_cli.cluster.compare.clocks import clocks_of
from probe_cli.cluster.compare.comparison import Comparison, Verdict, help_text
from probe_cli.cluster.compare.explain import GRACE_S, Asked, explained, hung
from probe_cli.cluster.compare.facts import Clock, Facts, Who, one_clock_a_host, standstill_s
from probe_cli.cluster.compare.gather import question
from probe_cli.cluster.compare.questions import (
    FEW_RANKS,
    MOST_STEPS,
    NUM_STEPS,
    SPAN_S,
    Extent,
    num_steps_of,
)
from probe_cli.cluster.fanout import Answers
from probe_cli.messages import remark
from probe_cli.options import format_option, timeout_option
from probe_cli.render import Sheet
from probe_cli.render.show import in_both_forms, show, show_envelope
from probe_cli.session import Session
from probe_cli.text import few, seconds

__all__ = ["command"]

#: Hosts whose clocks have a line each.
MAX_CLOCKS = 8


@click.command("compare")
@click.option(
    "--by",
    type=click.Choice(list(WAYS)),
    default="step",
    show_default=True,
    help="What to compare.",
)
@click.option(
    "--steps",
    "num_steps",
    type=click.IntRange(min=10),
    default=None,
    metavar="N",
    help=f"Compare the newest N steps that the ranks have in common. By default {NUM_STEPS}; of {FEW_RANKS} ranks or"
    f" fewer those of {SPAN_S:.0f} seconds, {MOST_STEPS:,} at most.",
)
@click.option(
    "--watch",
    "watch_s",
    type=click.IntRange(min=0, max=60),
    default=3,
    show_default=True,
    metavar="SECONDS",
    help="Sample the stacks of the named rank and of a peer, from outside, for this long; 0 to skip.",
)
@format_option()
@timeout_option(10.0, "How long a rank may take to answer.")
@click.pass_obj
def command(session: Session, by: str, num_steps: int | None, watch_s: int, format_: str, timeout_s: float) -> int:
    """The exit code is the verdict's; ranks that did not answer come before all but a hang."""
    way = WAYS[by]
    ranks = session.ranks_of_job(timeout_s)
    asked: Asked = {
        Who(one.rank, one.info.host, one.info.pid): (endpoint, one.info) for endpoint, one in ranks.answered
    }
    extent = Extent(num_steps or NUM_STEPS, max(1, len(asked)))
    has_calls = "calls" in way.needs
    clocks = run(clocks_of({one.info.host: endpoint for endpoint, one in ranks.answered})) if has_calls else {}
    asked_of = question(way.needs, extent, timeout_s, dict(asked.values()))
    answers = session.ask_ranks(asked_of, timeout_s=timeout_s + GRACE_S, ranks=ranks)
    now = time()
    by_endpoint = {endpoint: who for who, (endpoint, _) in asked.items()}
    facts = [
        replace(told, who=who, clock=clocks.get(who.host), roles=asked[who][1].roles)
        for endpoint, told in answers.answered
        for who in (by_endpoint[endpoint],)
    ]
    targets = [target for _, target in asked.values()]
    if has_calls and num_steps is None:  # the rows of more are there already
        extent = replace(extent, num_steps=num_steps_of(_step_s(facts), len(facts)))
    if len(facts) < 2:
        comparison = _too_few(targets, answers)
    else:
        stuck = run(hung(facts, asked, now, timeout_s)) if has_calls else None
        comparison = stuck or way.compare(facts, extent.num_steps)
        is_known = comparison.study is not None and len(comparison.study.analysis.steps) > 0
        if comparison.study is not None and is_known:
            comparison = run(explained(comparison, comparison.study, asked, extent, watch_s, timeout_s))
    notes = [*comparison.notes, *_notes(facts, targets, comparison, now)]
    _show(comparison, facts, notes, answers, format_)
    if comparison.verdict.state == "hangs":
        return comparison.verdict.exit_code
    return answers.exit_code or comparison.verdict.exit_code


command.help = f"""Compare the ranks behind the endpoints: whose own time does the job wait for, where, and at what
cost.

The first line is a sentence: the job hangs, and in what; or there is not enough data; or who holds the job up, what
that costs, how often, and with what; or the cost rotates among the ranks; or there is none, and the smallest that would
have been seen. Then a table of costs. Times are in seconds, memory in MiB.

Every wait for a collective, a send or a receive is charged to the rank that came last, and on through what that rank
itself waited for. What a rank costs is what the job would save if it took no longer for its own work than its peers. A
rank, several, a host or a stage is named when that is 5 % of the job's time or more with 95 % confidence. How far the
hosts' clocks are apart is measured and shown.

With --format json the answer is an object: the verdict and the clocks beside rows, columns, notes, answered and
unanswered. With csv and jsonl the rows are on stdout and the sentence on stderr.

\b
Exit codes:
{help_text()}
"""


def _step_s(facts: Sequence[Facts]) -> float | None:
    """Return how long a step takes, of the newest ones of all ranks."""
    known = [float(median(steps[-NUM_STEPS:])) for one in facts if len(steps := one.steps.get("duration", ()))]
    return max(known, default=None)


def _too_few(asked: Sequence[TargetInfo], answers: Answers[Facts]) -> Comparison:
    """One rank or none has answered: what it takes to compare, instead of a table of nothing."""
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


def _notes(facts: list[Facts], targets: Iterable[TargetInfo], comparison: Comparison, now: float) -> list[str]:
    """What is to be known about those who were compared, whatever was compared."""
    notes = few([f"{fact.who} could not tell {gap}" for fact in facts for gap in fact.gaps])
    ranks = [fact.who.rank for fact in facts]
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if twice:
        notes.append(f"several targets say they are rank {twice[0]}; if they are of several jobs, name those of one")
    stands_s = standstill_s(facts, now)
    if stands_s is not None and comparison.verdict.state != "hangs":
        ended = all(not target.alive for target in targets)
        what = "these processes have ended" if ended else f"no rank has ended a step for {seconds(stands_s)}"
        notes.append(f"{what}: this is as it was then")
    return notes


@in_both_forms
def _show(comparison: Comparison, facts: list[Facts], notes: list[str], answers: Answers[Facts], format_: str) -> None:
    clocks = {fact.who.host: fact.clock for fact in one_clock_a_host(facts) if fact.clock is not None and facts[1:]}
    sheet = Sheet(comparison.columns, comparison.types, comparison.rows)
    if format_ in ("json", "envelope"):
        show_envelope(
            sheet,
            answers,
            notes,
            verdict={**asdict(comparison.verdict), "exit_code": comparison.verdict.exit_code},
            clocks=[{"host": host, **asdict(clock)} for host, clock in clocks.items()],
        )
        return
    if format_ == "table":
        print(comparison.verdict.sentence + "\n" * bool(sheet.rows), flush=True)
    else:
        remark(comparison.verdict.sentence)
    if sheet.rows or (format_ != "table" and sheet.columns):
        show(sheet, format_)
    for note in notes:
        remark(note)
    for line in clock_lines(clocks):
        remark(line)


def clock_lines(clocks: Mapping[str, Clock]) -> Iterator[str]:
    """What is known of the clocks of these hosts: a line for each, or one for all of many."""
    if len(clocks) <= MAX_CLOCKS:
        for host, clock in clocks.items():
            yield f"clock of {host}: {_offset(clock)}, ±{seconds(clock.uncertainty)}"
        return
    by_offset = sorted(clocks, key=lambda host: clocks[host].offset)
    behind, ahead = (f"{_offset(clocks[host])} ({host})" for host in (by_offset[0], by_offset[-1]))
    vaguest = max(clocks, key=lambda host: clocks[host].uncertainty)
    known = f"±{seconds(clocks[vaguest].uncertainty)} at most ({vaguest})"
    yield f"clocks of {len(clocks)} hosts: from {behind} to {ahead}, {known}"


def _offset(clock: Clock) -> str:
    return f"{seconds(abs(clock.offset))} {'ahead of' if clock.offset > 0 else 'behind'} ours"
