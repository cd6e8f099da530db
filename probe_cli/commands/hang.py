"""`probe … hang`: whether the job hangs, which rank it waits for, and where that rank is."""

from __future__ import annotations

import time
from collections.abc import Mapping

import click

from probe_agent.wire import TargetInfo
from probe_cli.cluster.fanout import Answers
from probe_cli.cluster.hang.looks import Look, look
from probe_cli.cluster.hang.verdict import State, Verdict, judge
from probe_cli.endpoint import Endpoint
from probe_cli.messages import remark
from probe_cli.options import format_option, timeout_option
from probe_cli.render import Sheet
from probe_cli.render.show import show, show_envelope
from probe_cli.session import Session
from probe_cli.text import ranks_text

__all__ = ["command"]

#: Beyond its own time-out, a look is several questions one after the other.
GRACE_S = 5.0


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
@format_option()
@timeout_option(5.0, "How long a rank may take to answer.")
@click.pass_obj
def command(session: Session, between_s: float, format_: str, timeout_s: float) -> int:
    """Say whether the job hangs, which rank it waits for, and where that rank is.

    Every rank is looked at twice; a rank that has got on in between is not hung. The ranks are aligned by process group
    and the number of the collective, and from each open call the chain of waits is followed to the rank at its end: it
    has not come, has come with other sizes, waits in another group, is stopped, or is gone. Stacks are read from
    outside, so a rank that holds its GIL is seen as well.

    A rank that saves or loads a checkpoint, compiles, or still moves is given two minutes before the job is said to
    hang.

    \b
    Exit codes:
      0  no hang
      1  the job hangs
      3  part of the job could not be seen, and nothing else decides
      4  no rank could be reached
    """
    ranks = session.ranks_of_job()
    targets = {one.rank: one.info for _, one in ranks.answered}
    rank_at = {endpoint: one.rank for endpoint, one in ranks.answered}
    question = look(timeout_s)
    began = time.monotonic()
    before = _looks(session.ask_ranks(question, timeout_s=timeout_s + GRACE_S, ranks=ranks), rank_at)
    time.sleep(max(0.0, between_s - (time.monotonic() - began)))
    elapsed_s = time.monotonic() - began
    answers = session.ask_ranks(question, timeout_s=timeout_s + GRACE_S, ranks=ranks)
    after = _looks(answers, rank_at)
    world_size = max((target.world_size for target in targets.values()), default=0)
    missing = sorted(set(range(world_size)) - set(after))
    verdict = judge(targets, before, after, between_s=elapsed_s, missing=len(missing))
    notes = [f"rank {rank}: {gap}" for rank, seen in sorted(after.items()) for gap in seen.gaps[:1]]
    if missing:
        notes.append(f"nothing is known of rank{'s' if missing[1:] else ''} {ranks_text(missing)}")
    _show(verdict, targets, after, notes, answers, format_)
    if verdict.state is State.NONE and missing:
        return State.UNKNOWN.exit_code
    return verdict.state.exit_code


def _looks(answers: Answers[Look], rank_at: Mapping[Endpoint, int]) -> dict[int, Look]:
    return {rank_at[endpoint]: seen for endpoint, seen in answers.answered}


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
