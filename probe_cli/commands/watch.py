"""`probe … watch`: the same SQL, asked again and again."""

from __future__ import annotations

import click

from probe_cli.options import across_options, format_option, text_from, timeout_option
from probe_cli.session import Session

__all__ = ["command"]


@click.command("watch", short_help="Ask with SQL every few seconds.")
@click.argument("sql", required=False)
@click.option("-f", "--file", "path", metavar="FILE", help="Read the SQL from FILE (- is stdin).")
@click.option(
    "-n",
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="From one question to the next.",
)
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N answers.")
@format_option()
@timeout_option(10.0, "How long each question may take.")
@across_options
@click.pass_obj
def command(
    session: Session,
    sql: str | None,
    path: str | None,
    interval_s: float,
    count: int | None,
    format_: str,
    timeout_s: float,
    host_timeout_s: float,
    max_transfer_mib: float,
) -> int:
    """Ask one SQL statement every few seconds, until Ctrl-C.

    A terminal shows the newest answer in place of the one before; a pipe gets one after the other, tables with the time
    above each. Who does not answer once is asked again the next time. Example: probe -t node1:8080 -t node2:8080
    watch 'SELECT rank, max(step) FROM python.steps GROUP BY rank ORDER BY rank' -n 2
    """
    from probe_agent.wire import QueryRequest
    from probe_cli.answering import Across
    from probe_cli.watching import watch

    request = QueryRequest(text_from(sql, path, "the SQL"), timeout_s=timeout_s)
    return watch(session, request, Across(host_timeout_s, max_transfer_mib), format_, interval_s, count)
