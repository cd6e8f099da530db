"""`probe … compare`: the ranks side by side, and for whom the job waits."""

from __future__ import annotations

import click

from probe_cli.cluster.compare.by import names
from probe_cli.cluster.compare.states import help_text
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
@click.option(
    "--watch",
    "watch_s",
    type=click.IntRange(min=0, max=60),
    default=3,
    show_default=True,
    metavar="SECONDS",
    help="Sample the stacks of the rank that is named, and of a peer, from outside for so long; 0 does without.",
)
@format_option()
@timeout_option(10.0, "How long a rank may take to answer.")
@click.pass_obj
def command(session: Session, by: str, num_steps: int, watch_s: int, format_: str, timeout_s: float) -> int:
    from probe_cli.comparing import show_comparison

    return show_comparison(session, by=by, num_steps=num_steps, watch_s=watch_s, format_=format_, timeout_s=timeout_s)


command.help = f"""Compare the ranks behind the endpoints: whose own time does the job wait for, where, and at what
cost.

First one sentence: that the job hangs, and in what; or that there is not enough data; or who holds the job up, what
that costs, how often, and with what; or that the cost rotates among the ranks; or that there is none, and the smallest
that would have been seen. Then a table of costs. Times are in seconds, memory in MiB.

Every wait for a collective, a send or a receive is charged to the rank that came last, and on through what that rank
itself waited for. What a rank costs is what the job would save if it took no longer for its own work than its peers. A
rank, several, a host or a stage is named when that is 5 % of the job's time or more with 95 % confidence. How far the
hosts' clocks are apart is measured and shown.

With --format json the verdict, the clocks, the notes and who did not answer are fields beside the rows; with csv and
jsonl the rows are on stdout and the sentence on stderr.

\b
Exit codes:
{help_text()}
"""
