"""From the question `compare` to what is written: asks every rank, has them compared, and prints the verdict.

Runs in the CLI.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from math import ceil
from time import sleep, time
from typing import TYPE_CHECKING, TypeVar

from .session import Session, remark

if TYPE_CHECKING:
    from probe_agent.wire import TargetInfo

    from .client import Client
    from .cluster.compare.comparison import Comparison
    from .cluster.compare.facts import Facts, Who
    from .cluster.compare.study import Study
    from .cluster.compare.verdict import Named
    from .cluster.fanout import Answers
    from .endpoint import Endpoint

__all__ = ["show_comparison"]

T = TypeVar("T")

#: A rank is asked a few questions, one after the other, and for its clock.
GRACE_S = 5.0
#: Peers whose tables are looked at beside those of a rank that is named.
MAX_PEERS = 4
#: What happens now and then is watched for so many of its periods, but no longer than this.
NUM_PERIODS, MAX_WATCH_S = 2, 10
#: Stacks a second while a rank is watched; py-spy starts and ends within so long.
WATCH_RATE, WATCH_GRACE_S = 50, 30.0
#: Ranks that a hung job waits for, of which it is shown where they are.
MAX_STACKS = 4


def show_comparison(session: Session, *, by: str, num_steps: int, watch_s: int, format_: str, timeout_s: float) -> int:
    """Print the comparison of all ranks. The exit code is the verdict's; that somebody did not answer comes before all
    but a hang."""
    from .cluster.compare.by import load
    from .cluster.compare.facts import Who
    from .cluster.compare.gather import question
    from .cluster.compare.questions import Extent

    way = load(by)
    members = session.ranks_of_job()
    whose = dict(members.answered)
    extent = Extent(num_steps, max(1, len(whose)))
    clocks_of = one_of_each_host(whose) if "calls" in way.NEEDS else ()
    answers = session.ask_members(
        question(way.NEEDS, extent, timeout_s, clocks_of=clocks_of), timeout_s=timeout_s + GRACE_S, members=members
    )
    now = time()
    asked = {
        Who(member.rank, member.info.host, member.info.pid): (endpoint, member.info)
        for endpoint, member in whose.items()
    }
    by_endpoint = {endpoint: who for who, (endpoint, _) in asked.items()}
    targets = {who: target for who, (_, target) in asked.items()}
    facts = [
        replace(told, who=who, roles=targets[who].roles)
        for endpoint, told in answers.answered
        for who in (by_endpoint[endpoint],)
    ]
    if len(facts) < 2:
        comparison = _too_few(list(targets.values()), answers)
    else:
        hung = _hung(facts, asked, now, timeout_s) if "calls" in way.NEEDS else None
        comparison = hung or way.compare(facts, num_steps)
        if comparison.study is not None and comparison.verdict.state == "stands out":
            comparison = _explained(comparison, comparison.study, asked, extent, watch_s, timeout_s)
    notes = [*comparison.notes, *_notes(facts, targets.values(), comparison, now)]
    _show(comparison, facts, notes, answers, format_)
    if comparison.verdict.state == "hangs":
        return comparison.verdict.exit_code
    return answers.exit_code or comparison.verdict.exit_code


def one_of_each_host(whose: Mapping[Endpoint, object]) -> set[Endpoint]:
    """An endpoint of each host: ranks of one host have one clock."""
    return set({member.info.host: endpoint for endpoint, member in whose.items()}.values())  # type: ignore[attr-defined]


def _ask(endpoints: Sequence[Endpoint], question: Callable[[Client], Awaitable[T]], timeout_s: float) -> Answers[T]:
    """A question on the side: who does not answer is no failure of the comparison."""
    from .client.loop import run
    from .cluster.fanout import ask

    return run(ask(endpoints, question, timeout_s=timeout_s, inject=False, remark=remark))


def _hung(
    facts: Sequence[Facts], asked: Mapping[Who, tuple[Endpoint, TargetInfo]], now: float, timeout_s: float
) -> Comparison | None:
    """The comparison of a job that hangs: two looks, a moment apart, before that is said."""
    from .cluster.compare.clocks import one_clock_a_host
    from .cluster.compare.comparison import Comparison
    from .cluster.compare.hang import BETWEEN_S, Progress, hang, look, silence_s, standstill_s

    has_steps = any(fact.steps for fact in facts)
    if has_steps and standstill_s(facts, now) is None:
        return None
    offsets = {fact.who: fact.clock.offset for fact in one_clock_a_host(facts) if fact.clock is not None}
    by_endpoint = {endpoint: who for who, (endpoint, _) in asked.items()}

    def progress() -> dict[Who, Progress]:
        answers = _ask(tuple(by_endpoint), look(timeout_s, with_history=not has_steps), timeout_s + GRACE_S)
        return {by_endpoint[endpoint]: found for endpoint, found in answers.answered}

    before = progress()
    stands_s = standstill_s(facts, now) if has_steps else silence_s(before, offsets, now)
    if stands_s is None:
        return None
    sleep(BETWEEN_S)
    after = progress()
    targets = {who: target for who, (_, target) in asked.items()}
    verdict = hang(targets, before, after, stands_s + BETWEEN_S, has_steps=has_steps)
    if verdict is None:
        return None
    where = _where([asked[who][0] for who in asked if who.rank in verdict.ranks][:MAX_STACKS], by_endpoint, timeout_s)
    sentence = "; ".join([verdict.sentence, *where])
    return Comparison(replace(verdict, sentence=sentence), (), (), ())


def _where(endpoints: Sequence[Endpoint], whose: Mapping[Endpoint, Who], timeout_s: float) -> list[str]:
    """Where these ranks are, by the innermost line of the job."""
    from probe_agent.wire import Backtrace

    from .render.hottest import job_frame

    async def question(client: Client) -> Backtrace:
        return await client.get(Backtrace, "/v1/backtrace", outside="true")

    said = []
    for endpoint, stacks in _ask(endpoints, question, timeout_s).answered:
        threads = [thread for thread in stacks.threads if thread.is_training or thread.is_main]
        frame = job_frame(threads[0].frames) if threads else None
        if frame is not None:
            said.append(f"{whose[endpoint]} is in {frame}")
    return said


def _explained(
    comparison: Comparison,
    study: Study,
    asked: Mapping[Who, tuple[Endpoint, TargetInfo]],
    extent: object,
    watch_s: int,
    timeout_s: float,
) -> Comparison:
    """The same, with what other tables, and a look at the rank while it works, tell of the one that is named first."""
    from .cluster.compare.verdict import judge, named

    first, *others = named(study)
    suspect = study.facts[first.cost.ranks[0]].who
    peers = [study.facts[at].who for at in study.peers(first.cost)[:MAX_PEERS]]
    first, notes = _with_tables(first, study, suspect, peers, asked, extent, timeout_s)
    alive = [who for who in (suspect, *peers) if asked[who][1].alive]
    if watch_s and alive[:1] == [suspect] and alive[1:]:
        first, more = _with_line(first, study, {who: asked[who][0] for who in alive[:2]}, watch_s)
        notes += more
    return replace(comparison, verdict=judge(study, [first, *others]), notes=(*comparison.notes, *notes))


def _with_tables(
    first: Named,
    study: Study,
    suspect: Who,
    peers: Sequence[Who],
    asked: Mapping[Who, tuple[Endpoint, TargetInfo]],
    extent: object,
    timeout_s: float,
) -> tuple[Named, list[str]]:
    from .cluster.compare.by.module import slow_module
    from .cluster.compare.evidence import NEEDS, beside
    from .cluster.compare.gather import question

    endpoints = {asked[who][0]: who for who in (suspect, *peers)}
    answers = _ask(tuple(endpoints), question(NEEDS, extent, timeout_s), timeout_s + GRACE_S)  # type: ignore[arg-type]
    known = {fact.who: fact for fact in study.facts}
    told = {
        endpoints[endpoint]: replace(fact, who=endpoints[endpoint], clock=known[endpoints[endpoint]].clock)
        for endpoint, fact in answers.answered
    }
    if suspect not in told:
        return first, []
    since, until = study.span(suspect)
    beside_it = beside(
        told[suspect],
        [fact for who, fact in told.items() if who != suspect],
        since,
        until,
        starved=first.longer.phase == "all phases",
    )
    module = slow_module([replace(fact, steps=known[who].steps) for who, fact in told.items()], suspect)
    return replace(first, beside=beside_it, module=module), []


def _with_line(first: Named, study: Study, watched: Mapping[Who, Endpoint], watch_s: int) -> tuple[Named, list[str]]:
    """Samples the stacks of the rank and of a peer, from outside: neither is stopped."""
    from probe_agent.wire import CpuProfileRequest

    from .client import Data
    from .cluster.compare.lines import slow_line
    from .render.hottest import job_lines

    if first.cost.period is not None:
        periods = NUM_PERIODS * first.cost.period * study.analysis.step_s
        watch_s = max(watch_s, ceil(min(MAX_WATCH_S, periods)))
    wanted = CpuProfileRequest(watch_s, WATCH_RATE, True, "folded")

    async def question(client: Client) -> Data:
        return await client.data("/v1/profile/cpu", wanted)

    answers = _ask(tuple(watched.values()), question, watch_s + WATCH_GRACE_S)
    if answers.unanswered:
        endpoint, error = answers.unanswered[0]
        return first, [f"its line is not known: {endpoint} could not be watched: {error.message}"]
    suspect, peer = (job_lines(data.body.decode("utf-8", "replace")) for _, data in answers.answered)
    return replace(first, line=slow_line(suspect, peer)), []


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


def _notes(facts: list[Facts], targets: Iterable[TargetInfo], comparison: Comparison, now: float) -> list[str]:
    """What is to be known about those who were compared, whatever was compared."""
    from .cluster.compare.hang import standstill_s
    from .text import seconds

    notes = [f"{fact.who} could not tell {gap}" for fact in facts for gap in fact.gaps]
    ranks = [fact.who.rank for fact in facts]
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    if twice:
        notes.append(f"several targets say they are rank {twice[0]}: are these of one job? name them with -t")
    stands_s = standstill_s(facts, now)
    if stands_s is not None and comparison.verdict.state != "hangs":
        ended = all(not target.alive for target in targets)
        what = "these processes have ended" if ended else f"no rank has ended a step for {seconds(stands_s)}"
        notes.append(f"{what}: this is as it was then")
    return notes


def _show(comparison: Comparison, facts: list[Facts], notes: list[str], answers: Answers[Facts], format_: str) -> None:
    from .cluster.compare.clocks import one_clock_a_host
    from .render import Sheet
    from .render.show import show
    from .text import seconds

    clocks = {fact.who.host: fact.clock for fact in one_clock_a_host(facts) if fact.clock is not None and facts[1:]}
    sheet = Sheet(comparison.columns, comparison.types, comparison.rows)
    if format_ == "json":
        whole = {
            "verdict": {**asdict(comparison.verdict), "exit_code": comparison.verdict.exit_code},
            "ranks": list(sheet.records()),
            "clocks": [{"host": host, **asdict(clock)} for host, clock in clocks.items()],
            "notes": notes,
            "unanswered": [
                {"endpoint": str(endpoint), "message": error.message, "hint": error.hint}
                for endpoint, error in answers.unanswered
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
