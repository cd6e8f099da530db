"""`probe … hang`: a verdict on the job, the rank it waits for, and what that rank does."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import click

from probe_agent.errors import NoAnswer
from probe_agent.wire import ExtendTimeoutRequest, GroupTimeouts, TargetInfo
from probe_cli.client import Client
from probe_cli.client.loop import run
from probe_cli.cluster.fanout import Answers, ask
from probe_cli.cluster.hang.closer import looked_closer
from probe_cli.cluster.hang.looks import Look, is_alone, look, look_from_outside
from probe_cli.cluster.hang.verdict import PATIENCE_S, State, Verdict, judge
from probe_cli.cluster.ranks.listing import Rank
from probe_cli.endpoint import Endpoint, LocalProcess
from probe_cli.messages import remark
from probe_cli.options import format_option, timeout_option
from probe_cli.render import Sheet
from probe_cli.render.show import in_both_forms, show, show_envelope
from probe_cli.session import Session
from probe_cli.text import few, num_ranks, ranks_text

__all__ = ["command"]

T = TypeVar("T")

#: Of more ranks than this, the stalls are not told.
MAX_TOLD = 4
#: Beyond its own time-out, a look is several questions one after the other.
GRACE_S = 10.0


@click.command("hang")
@click.option(
    "--between",
    "between_s",
    type=click.FloatRange(min=0.2, max=60),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between the two looks at each rank.",
)
@click.option(
    "--patience",
    "patience_s",
    type=click.FloatRange(min=0),
    default=PATIENCE_S,
    show_default=True,
    metavar="SECONDS",
    help="Time that a rank has to save, load, read, compile or work before the job is said to hang.",
)
@click.option(
    "--extend-timeout",
    "extend_s",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Give all process groups this timeout, for calls made from now on; a longer one is kept.",
)
@format_option()
@timeout_option(5.0, "How long a rank may take to answer.")
@click.pass_obj
def command(
    session: Session, between_s: float, patience_s: float, extend_s: float | None, format_: str, timeout_s: float
) -> int:
    """Say whether the job hangs, which rank it waits for, and where that rank is.

    Every rank is looked at twice; a rank that has got on in between is not hung. The ranks are aligned by process group
    and the number of the collective, and from each open call the chain of waits is followed to the rank at its end: it
    has not come, has come with other sizes, waits in another group, is stopped, or is gone. Stacks are read from
    outside, so a rank that holds its GIL is seen as well.

    A rank that saves, loads, compiles, reads from storage or still works has two minutes (--patience) before the job is
    said to hang.

    torch gives a call its timeout when the call is made: --extend-timeout does not save a call that already waits. It
    helps ranks that are late for the next ones, such as a slow checkpoint before a barrier.

    \b
    Exit codes:
      0  no hang
      1  the job hangs, or has died
      3  part of the job could not be seen, and nothing else decides
      4  no rank could be reached
    """
    ranks = session.ranks_of_job()
    targets = {one.rank: one.info for _, one in ranks.answered}
    rank_at = {endpoint: one.rank for endpoint, one in ranks.answered}
    without = tuple(at for at, _ in ranks.unanswered if isinstance(at, LocalProcess))
    world_size = max((target.world_size for target in targets.values()), default=0)
    alone = is_alone(list(targets.values())) and not ranks.unanswered

    def look_at_all() -> tuple[Answers[Look], dict[int, Look]]:
        answers = session.ask_ranks(look(timeout_s, alone=alone), timeout_s=timeout_s + GRACE_S, ranks=ranks)
        looks = {rank_at[endpoint]: seen for endpoint, seen in answers.answered}
        blind = session.ask_these(without, look_from_outside, timeout_s=timeout_s, needs_agent=False).answered
        for rank, pid, seen in _numbered(blind, set(looks), world_size):
            looks[rank] = seen
            targets[rank] = _without_recorder(pid, rank, world_size)
        return answers, looks

    began = time.monotonic()
    _, before = look_at_all()
    time.sleep(max(0.0, between_s - (time.monotonic() - began)))
    elapsed_s = time.monotonic() - began
    answers, after = look_at_all()
    if not after:
        raise NoAnswer(
            f"none of {len(ranks.answered) + len(ranks.unanswered)} ranks could be looked at",
            "wait longer with --timeout SECONDS, or see why: probe … ranks",
        )
    missing = sorted(set(range(world_size)) - set(after))
    endpoints = {rank: endpoint for endpoint, rank in rank_at.items()}

    async def ask_ranks(question: Callable[[Client], Awaitable[T]], these: Sequence[int]) -> dict[int, T]:
        known = tuple(endpoints[rank] for rank in these if rank in endpoints)
        told = await ask(known, question, timeout_s=timeout_s + GRACE_S, inject=False, remark=remark)
        return {rank_at[endpoint]: found for endpoint, found in told.answered}

    judged = partial(judge, targets, missing=missing, patience_s=patience_s)
    verdict = run(looked_closer(judged, before, after, ask_ranks, between_s=elapsed_s, timeout_s=timeout_s))
    notes = few([f"rank {rank}: {gap}" for rank, seen in sorted(after.items()) for gap in seen.gaps[:1]])
    notes += _stalls(verdict, targets)
    if missing:
        notes.append(f"nothing is known of rank{'s' if missing[1:] else ''} {ranks_text(missing)}")
    if extend_s is not None:
        notes += _extend(session, ranks, extend_s, timeout_s)
    _show(verdict, targets, after, notes, answers, format_)
    if verdict.state in (State.NONE, State.SLOW) and missing:
        return State.UNKNOWN.exit_code
    return verdict.state.exit_code


def _stalls(verdict: Verdict, targets: Mapping[int, TargetInfo]) -> list[str]:
    """Return what the recorders of the ranks to blame noticed when the job came to stand still."""
    blamed = [(rank, targets[rank]) for rank in verdict.ranks if rank in targets]
    return [f"rank {rank}, as its recorder saw it: {target.stall}" for rank, target in blamed if target.stall][
        :MAX_TOLD
    ]


def _extend(session: Session, ranks: Answers[Rank], extend_s: float, timeout_s: float) -> list[str]:
    """Extend the timeouts on all ranks; return one sentence for each outcome, with the ranks that it holds for."""

    async def ask(client: Client) -> GroupTimeouts:
        return await client.send(GroupTimeouts, "POST", "/v1/extend-timeout", ExtendTimeoutRequest(extend_s))

    rank_at = {endpoint: one.rank for endpoint, one in ranks.answered}
    outcomes: dict[str, list[int]] = {}
    for endpoint, told in session.ask_these(tuple(rank_at), ask, timeout_s=timeout_s).answered:
        said = [
            f"group {one.group}: timeout {extend_s if one.now_s is None else one.now_s:g} s for calls made from now on"
            + (f", {one.before_s:g} s before" if one.before_s is not None else "")
            for one in told.groups
        ]
        for sentence in (*said, *told.notes):
            outcomes.setdefault(sentence, []).append(rank_at[endpoint])
    kept = "calls that already wait keep their timeout: torch has no way to change it"
    return [*(f"{sentence} ({num_ranks(on)})" for sentence, on in outcomes.items()), kept]


def _numbered(
    blind: Sequence[tuple[Endpoint, Look]], known: Collection[int], world_size: int
) -> Iterator[tuple[int, int, Look]]:
    """Yield rank, PID and look of processes without a recorder, none of them in `known`. The environment tells the
    rank; where it does not, as of ranks that were forked, it seems to be 0, and a single process is the single rank
    that is missing."""
    processes = [(at.pid, seen) for at, seen in blind if isinstance(at, LocalProcess) and seen.stacks is not None]
    claims = Counter(seen.stacks.rank for _, seen in processes if seen.stacks is not None)
    missing, unknown = set(range(world_size)) - set(known), []
    for pid, seen in processes:
        rank = seen.stacks.rank if seen.stacks is not None else None
        if rank is None or rank in known or claims[rank] > 1:
            unknown.append((pid, seen))
            continue
        missing.discard(rank)
        yield rank, pid, seen
    if len(unknown) == len(missing) == 1:
        (rank,), ((pid, seen),) = missing, unknown
        yield rank, pid, replace(seen, gaps=(f"no recorder could start in pid {pid}, taken for the rank not seen",))


def _without_recorder(pid: int, rank: int, world_size: int) -> TargetInfo:
    """Return what is known of a rank of this host in which no recorder could start, such as one that holds its GIL."""
    return TargetInfo(
        pid,
        rank,
        0,
        world_size,
        os.uname().nodename,
        os.geteuid(),
        True,
        "",
        None,
        None,
        None,
        (),
        "",
        None,
        "",
        "",
        0,
        "",
    )


@in_both_forms
def _show(
    verdict: Verdict,
    targets: Mapping[int, TargetInfo],
    looks: Mapping[int, Look],
    notes: list[str],
    answers: Answers[Look],
    format_: str,
) -> None:
    rows = [
        (
            rank,
            target.host,
            target.pid,
            target.step,
            target.step_age_s,
            target.state,
            looks[rank].first_call if rank in looks else None,
            verdict.doing[rank].activity.value if rank in verdict.doing else None,
            verdict.doing[rank].frame if rank in verdict.doing else None,
        )
        for rank, target in sorted(targets.items())
    ]
    columns = ("rank", "host", "pid", "step", "last_step", "state", "in_call", "doing", "line")
    types = ("BIGINT", "VARCHAR", "BIGINT", "BIGINT", "DOUBLE", *["VARCHAR"] * 4)
    sheet = Sheet(columns, types, rows)
    if format_ in ("json", "envelope"):
        told = {
            "state": verdict.state.label,
            "sentence": verdict.sentence,
            "exit_code": verdict.state.exit_code,
            "ranks": list(verdict.ranks),
            "cause": verdict.cause,
            "stands_s": verdict.stands_s,
            "aborts_in_s": verdict.aborts_in_s,
        }
        show_envelope(sheet, answers, notes, verdict=told)
        return
    sentence = verdict.sentence
    if verdict.aborts_in_s is not None and verdict.aborts_in_s > 0:
        sentence += f"; torch gives up on it in {verdict.aborts_in_s:.0f} s"
    if format_ == "table":
        print(sentence + "\n", flush=True)
    else:
        remark(sentence)
    show(sheet, format_)
    for note in notes:
        remark(note)
