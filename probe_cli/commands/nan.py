"""`probe … nan`: which values are not finite, on which rank, and which module made the first one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from probe_agent.errors import BadRequest
from probe_agent.wire import HuntRequest
from probe_cli.cluster.fanout import Answers
from probe_cli.cluster.nan.hunt import blind_spots, culprit, hunt
from probe_cli.cluster.nan.hunt import sentence as hunt_sentence
from probe_cli.cluster.nan.tensors import are_finite, gaps, looked_at, read_tensors, sentence
from probe_cli.cluster.ranks.listing import Rank
from probe_cli.messages import remark
from probe_cli.options import format_option, timeout_option
from probe_cli.render import Sheet
from probe_cli.render.show import show, show_envelope
from probe_cli.session import Session
from probe_cli.text import num_ranks

__all__ = ["command"]

#: Beyond its own time-out, a rank looks for its models and sends its answer.
GRACE_S = 10.0
COLUMNS = ("rank", "kind", "module", "tensor", "shape", "nan", "inf", "values", "step")
TYPES = ("BIGINT", *["VARCHAR"] * 4, *["BIGINT"] * 4)
HUNT_COLUMNS = ("rank", "step", "what", "of", "value")
HUNT_TYPES = ("BIGINT", "BIGINT", "VARCHAR", "VARCHAR", "VARCHAR")
#: Seconds that a hunt takes without a limit, and with a number of steps.
HUNT_S, LONG_HUNT_S = 60.0, 3600.0


@click.command("nan")
@click.option("--hunt", "is_hunt", is_flag=True, help="Watch the modules of the next steps instead.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="With --hunt: end after N watched steps.")
@click.option(
    "--seconds",
    "hunt_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="With --hunt: end after S seconds.  [default: 60; with --steps 3600]",
)
@click.option(
    "--every",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="With --hunt: every Nth step.",
)
@click.option(
    "--budget",
    "budget_ms",
    type=click.FloatRange(min=0.1, max=1000),
    metavar="MS",
    help="How long each step may be held up to read values.  [default: 20; with --hunt 100]",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format envelope.")
@format_option()
@timeout_option(60.0, "How long a rank may take to read all, without --hunt.")
@click.pass_obj
def command(
    session: Session,
    is_hunt: bool,
    steps: int | None,
    hunt_s: float | None,
    every: int,
    budget_ms: float | None,
    as_json: bool,
    format_: str,
    timeout_s: float,
) -> int:
    """Say which gradients, parameters and buffers are not finite, by module and rank, and since when the loss is not.

    The training thread reads them between steps, each time for as long as --budget allows; a large model takes several
    steps. Gradients are read after the optimizer's step, before the job clears them.

    With --hunt, watch the batch, the modules' inputs and outputs, the loss and the gradients of the next steps, until
    one of them goes wrong, and name the first module, step and rank, and whether its input was finite. Ctrl-C ends it.

    \b
    Exit codes:
      0  nothing found; the sentence says what was looked at
      1  something is not finite
      3  part could not be seen, and nothing was found in the rest
      4  no rank could be reached
    """
    if not is_hunt and (steps is not None or hunt_s is not None or every != 1):
        raise BadRequest("--steps, --seconds and --every are for a hunt", "add --hunt")
    format_ = "envelope" if as_json or format_ == "json" else format_
    ranks = session.ranks_of_job()
    if is_hunt:
        limit_s = hunt_s or (HUNT_S if steps is None else LONG_HUNT_S)
        return _hunt(session, ranks, HuntRequest(steps, limit_s, every, budget_ms or 100.0), format_)
    rank_at = {endpoint: one.rank for endpoint, one in ranks.answered}
    question = read_tensors("nan", budget_ms or 20.0, timeout_s)
    answers = session.ask_ranks(question, timeout_s=timeout_s + GRACE_S, ranks=ranks)
    readings = {rank_at[endpoint]: one for endpoint, one in answers.answered}
    unknown = gaps(readings, _missing(session, ranks, readings))
    found = not are_finite(readings)
    rows = [
        (rank, *(row[name] for name in COLUMNS[1:])) for rank, one in sorted(readings.items()) for row in one.rows()
    ]
    code = 1 if found else answers.exit_code or (3 if unknown else 0)
    told = {"looked_at": looked_at(readings)}
    _show(sentence(readings), Sheet(COLUMNS, TYPES, rows), answers, unknown, code, format_, told)
    if found and format_ != "envelope":
        remark(f"looked at: {looked_at(readings)}")
    return code


def _hunt(session: Session, ranks: Answers[Rank], request: HuntRequest, format_: str) -> int:
    rank_at = {endpoint: one.rank for endpoint, one in ranks.answered}
    waiting = {str(endpoint) for endpoint in rank_at}

    def watches(endpoint: str) -> None:
        waiting.discard(endpoint)
        if not waiting:
            remark(f"watching {num_ranks(rank_at.values())}")

    question = hunt(request, watches)
    answers = session.ask_ranks(question, timeout_s=request.seconds + GRACE_S, ranks=ranks)
    hunted = {rank_at[endpoint]: one for endpoint, one in answers.answered}
    first = culprit(hunted)
    missing = _missing(session, ranks, hunted)
    unknown = [f"nothing is known of {num_ranks(missing)}"] if missing else []
    is_blind = any(not one.line.watched or one.line.unseen for one in hunted.values())
    code = 1 if first is not None else answers.exit_code or (3 if unknown or is_blind else 0)
    origin = None if first is None else hunted[first].origin
    rows = [
        (rank, one.line.step, *seen)
        for rank, one in sorted(hunted.items(), key=lambda entry: entry[0] != first)
        if one.origin is not None
        for seen in one.origin.evidence
    ]
    told = {"rank": first, "origin": None if origin is None else asdict(origin)}
    notes = unknown + blind_spots(hunted)
    _show(hunt_sentence(hunted), Sheet(HUNT_COLUMNS, HUNT_TYPES, rows), answers, notes, code, format_, told)
    return code


def _missing(session: Session, ranks: Answers[Rank], known: Collection[int]) -> list[int]:
    """Ranks of the job that did not answer; those that were not asked for do not matter."""
    if not session.everyone:
        return []
    world_size = max((one.info.world_size or 1 for _, one in ranks.answered), default=0)
    return sorted(set(range(world_size)) - set(known))


def _show(
    said: str,
    sheet: Sheet,
    answers: Answers[Any],
    notes: Sequence[str],
    code: int,
    format_: str,
    told: Mapping[str, object],
) -> None:
    """Print the sentence, the evidence below it, and what was not seen."""
    if format_ == "envelope":
        show_envelope(sheet, answers, notes, sentence=said, exit_code=code, **told)
        return
    if format_ == "table":
        print(said + ("\n" if sheet.rows else ""), flush=True)
    else:
        remark(said)
    if sheet.rows or format_ != "table":
        show(sheet, format_)
    for note in notes:
        remark(note)
