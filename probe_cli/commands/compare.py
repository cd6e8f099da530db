"""`probe … compare`: the ranks side by side, and who stands out."""

from __future__ import annotations

import click

from probe_cli.cluster.compare.by import names
from probe_cli.options import format_option, timeout_option
from probe_cli.session import Session

__all__ = ["command"]


@click.command("compare", short_help="Put the ranks side by side: who is slow, and with what.")
@click.option(
    "--by",
    type=click.Choice(names()),
    default="step",
    show_default=True,
    help="What is compared.",
)
@click.option(
    "--steps",
    "num_steps",
    type=click.IntRange(min=10),
    default=200,
    show_default=True,
    metavar="N",
    help="Compare the newest N steps that the ranks have in common.",
)
@format_option()
@timeout_option(10.0, "How long a rank may take to answer.")
@click.pass_obj
def command(session: Session, by: str, num_steps: int, format_: str, timeout_s: float) -> int:
    """Compare the ranks behind the endpoints, each with the median of the others.

    First one sentence: which rank stands out and with what; or that none does, and what was compared; or that there is
    not enough data, which is exit code 1. Then the table. Times are in seconds, memory in MiB.

    In a synchronous job all steps take equally long: the slow rank is the one that comes last to the collectives. A
    rank is named when it is a tenth of a step behind in most steps, and by more than the others scatter. How far the
    hosts' clocks are apart is measured and shown.

    With --format json the verdict, the clocks, the notes and who did not answer are fields beside the rows; with csv
    and jsonl the rows are on stdout and the sentence on stderr.
    """
    from probe_cli.comparing import show_comparison

    return show_comparison(session, by=by, num_steps=num_steps, format_=format_, timeout_s=timeout_s)
