"""`probe … nan`: which parameters, gradients and buffers are not finite, on which rank."""

from __future__ import annotations

import click

from probe_cli.cluster.nan.tensors import are_finite, gaps, looked_at, read_tensors, sentence
from probe_cli.messages import remark
from probe_cli.options import format_option, timeout_option
from probe_cli.render import Sheet
from probe_cli.render.show import show, show_envelope
from probe_cli.session import Session

__all__ = ["command"]

#: Beyond its own time-out, a rank looks for its models and sends its answer.
GRACE_S = 10.0
COLUMNS = ("rank", "kind", "module", "tensor", "shape", "nan", "inf", "values", "step")
TYPES = ("BIGINT", *["VARCHAR"] * 4, *["BIGINT"] * 4)


@click.command("nan")
@click.option(
    "--budget",
    "budget_ms",
    type=click.FloatRange(min=0.1, max=1000),
    default=20.0,
    show_default=True,
    metavar="MS",
    help="How long each step may be held up.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format envelope.")
@format_option()
@timeout_option(60.0, "How long a rank may take to read all.")
@click.pass_obj
def command(session: Session, budget_ms: float, as_json: bool, format_: str, timeout_s: float) -> int:
    """Say which gradients, parameters and buffers are not finite, by module and rank, and since when the loss is not.

    The training thread reads them between steps, each time for as long as --budget allows; a large model takes several
    steps. Gradients are read after the optimizer's step, before the job clears them.

    \b
    Exit codes:
      0  nothing found; the sentence says what was looked at
      1  something is not finite
      3  part could not be read, and nothing was found in the rest
      4  no rank could be reached
    """
    ranks = session.ranks_of_job()
    rank_at = {endpoint: one.rank for endpoint, one in ranks.answered}
    question = read_tensors("nan", budget_ms, timeout_s)
    answers = session.ask_ranks(question, timeout_s=timeout_s + GRACE_S, ranks=ranks)
    readings = {rank_at[endpoint]: one for endpoint, one in answers.answered}
    world_size = max((one.info.world_size or 1 for _, one in ranks.answered), default=0)
    missing = sorted(set(range(world_size)) - set(readings)) if session.everyone else []
    unknown = gaps(readings, missing)
    found = not are_finite(readings)
    said = sentence(readings)
    sheet = Sheet(
        COLUMNS,
        TYPES,
        [(rank, *(row[name] for name in COLUMNS[1:])) for rank, one in sorted(readings.items()) for row in one.rows()],
    )
    code = 1 if found else answers.exit_code or (3 if unknown else 0)
    if as_json or format_ in ("json", "envelope"):
        show_envelope(sheet, answers, unknown, sentence=said, exit_code=code, looked_at=looked_at(readings))
        return code
    if format_ == "table":
        print(said + ("\n" if found else ""), flush=True)
    else:
        remark(said)
    if found:
        show(sheet, format_)
        remark(f"looked at: {looked_at(readings)}")
    for note in unknown:
        remark(note)
    return code
