"""`probe … hang`: whether the job hangs, which rank it waits for, and where that rank is."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

from probe_cli.options import timeout_option
from probe_cli.session import Session, remark

if TYPE_CHECKING:
    from probe_agent.wire import TargetInfo
    from probe_cli.cluster.hang.looks import Look
    from probe_cli.cluster.hang.verdict import Verdict
    from probe_cli.endpoint import Endpoint

__all__ = ["command"]

#: Beyond its own time-out, a look is several questions one after the other.
GRACE_S = 5.0


@click.command("hang", short_help="Say whether the job hangs, and which rank it waits for.")
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
    "--format",
    "format_",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How the answer is written.",
)
@timeout_option(5.0, "How long a rank may take to answer.")
@click.pass_obj
def command(session: Session, between_s: float, format_: str, timeout_s: float) -> int:
    """Say whether the job hangs, which rank it waits for, and where that rank is: one sentence, then a line a rank.

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
    from probe_cli.cluster.hang.looks import look
    from probe_cli.cluster.hang.verdict import State, judge

    members = session.ranks_of_job()
    whose = {endpoint: member.info for endpoint, member in members.answered}
    living = tuple(endpoint for endpoint, info in whose.items() if info.alive)
    question = look(timeout_s, outside=True)
    began = time.monotonic()
    first = _looks(session.ask_these(tuple(whose), question, timeout_s=timeout_s + GRACE_S).answered, whose)
    if living:
        time.sleep(max(0.0, between_s - (time.monotonic() - began)))
    elapsed = time.monotonic() - began
    answers = session.ask_these(tuple(whose), question, timeout_s=timeout_s + GRACE_S)
    second = _looks(answers.answered, whose)
    targets = {_rank(info): info for info in whose.values()}
    world_size = max((info.world_size for info in targets.values()), default=0)
    missing = sorted(set(range(world_size)) - set(second))
    verdict = judge(targets, first, second, now=time.time(), between_s=elapsed, missing=len(missing))
    notes = [f"rank {rank}: {gap}" for rank, seen in sorted(second.items()) for gap in seen.gaps[:1]]
    if missing:
        from probe_cli.text import ranks_text

        notes.append(f"nothing is known of rank{'s' if missing[1:] else ''} {ranks_text(missing)}")
    _show(verdict, targets, second, notes, missing, format_)
    if verdict.state is State.NONE and (missing or answers.unanswered):
        return State.UNKNOWN.exit_code
    return verdict.state.exit_code


def _looks(answered: tuple[tuple[Endpoint, Look], ...], whose: dict[Endpoint, TargetInfo]) -> dict[int, Look]:
    return {_rank(whose[endpoint]): seen for endpoint, seen in answered}


def _rank(info: TargetInfo) -> int:
    return info.rank if info.rank is not None else 0


def _show(
    verdict: Verdict,
    targets: dict[int, TargetInfo],
    looks: dict[int, Look],
    notes: list[str],
    missing: list[int],
    format_: str,
) -> None:
    from probe_cli.render import Sheet
    from probe_cli.render.show import show

    doing = verdict.doing or {}
    columns = ("rank", "host", "pid", "step", "last_step", "state", "in_call", "doing", "line")
    types = ("BIGINT", "VARCHAR", "BIGINT", "BIGINT", "DOUBLE", *["VARCHAR"] * 4)
    rows = [
        (
            rank,
            target.host,
            target.pid,
            target.step,
            target.step_age_s,
            target.state,
            _call(looks.get(rank)),
            doing[rank].activity.value if rank in doing else None,
            doing[rank].frame if rank in doing else None,
        )
        for rank, target in sorted(targets.items())
    ]
    sheet = Sheet(columns, types, rows)
    if format_ == "json":
        told = {
            "state": verdict.state.value[0],
            "sentence": verdict.sentence,
            "exit_code": verdict.state.exit_code,
            "ranks": list(verdict.ranks),
            "cause": verdict.cause,
            "stands_s": verdict.stands_s,
            "aborts_in_s": verdict.aborts_in_s,
        }
        print(json.dumps({"verdict": told, "ranks": list(sheet.records()), "notes": notes, "unanswered": missing}))
        return
    print(verdict.sentence)
    if verdict.aborts_in_s is not None and verdict.aborts_in_s > 0:
        print(f"torch gives up on it in {verdict.aborts_in_s:.0f} s")
    print()
    show(sheet, "table", remark)
    for note in notes:
        remark(note)


def _call(seen: Look | None) -> str | None:
    """The earliest call that the rank is in."""
    if seen is None:
        return None
    for name, op, seq, *_ in seen.recorded:
        return f"{op} {seq} of group {name}"
    for name, op, seq, _, peer, _ in seen.open_calls:
        return f"{op} with rank {peer}" if peer != -1 else f"{op} {seq} of group {name}"
    return None
