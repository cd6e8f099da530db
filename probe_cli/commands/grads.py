"""`probe … grads`: norms, zeros and NaN of all gradients, by layer."""

from __future__ import annotations

import click

from probe_cli.cluster.nan.tensors import are_finite, gaps, looked_at, read_tensors
from probe_cli.messages import remark
from probe_cli.options import format_option, timeout_option
from probe_cli.render import Sheet
from probe_cli.render.show import show, show_envelope
from probe_cli.session import Session

__all__ = ["command"]

#: Beyond its own time-out, a rank looks for its models and sends its answer.
GRACE_S = 10.0
COLUMNS = ("rank", "module", "tensor", "shape", "norm", "biggest", "zeros", "nan", "inf", "values", "step")
TYPES = ("BIGINT", "VARCHAR", "VARCHAR", "VARCHAR", "DOUBLE", "DOUBLE", *["BIGINT"] * 5)


@click.command("grads")
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
    """Show the gradients at the end of the next step, module by module: 2-norm, biggest absolute value, number of
    zeros, NaN and infinite values.

    They are read between steps, as by `nan`, within the same budget. If the job clips its gradients, these are the
    clipped ones; with a GradScaler that has not unscaled them, the scaled ones.

    \b
    Exit codes:
      0  all gradients are finite
      1  some are not
      3  part could not be read, and nothing was found in the rest
      4  no rank could be reached
    """
    ranks = session.ranks_of_job()
    rank_at = {endpoint: one.rank for endpoint, one in ranks.answered}
    question = read_tensors("grads", budget_ms, timeout_s)
    answers = session.ask_ranks(question, timeout_s=timeout_s + GRACE_S, ranks=ranks)
    readings = {rank_at[endpoint]: one for endpoint, one in answers.answered}
    world_size = max((one.info.world_size or 1 for _, one in ranks.answered), default=0)
    missing = sorted(set(range(world_size)) - set(readings)) if session.everyone else []
    unknown = gaps(readings, missing)
    rows = [
        (rank, *(row[name] for name in COLUMNS[1:])) for rank, one in sorted(readings.items()) for row in one.rows()
    ]
    sheet = Sheet(COLUMNS, TYPES, rows)
    notes = [looked_at(readings), *unknown] if readings else unknown
    if as_json or format_ == "envelope":
        show_envelope(sheet, answers, notes)
    else:
        show(sheet, format_)
        for note in notes:
            remark(note)
    if not are_finite(readings):
        return 1
    return answers.exit_code or (3 if unknown else 0)
