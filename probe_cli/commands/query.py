"""`probe … query`: SQL over what the target recorded and where it is now."""

from __future__ import annotations

import click

from probe_cli.options import across_options, format_option, text_from, timeout_option
from probe_cli.render.formats import BINARY_FORMATS
from probe_cli.session import Session

__all__ = ["command"]


@click.command("query", short_help="Ask the target with SQL.")
@click.argument("sql", required=False)
@click.option("-f", "--file", "path", metavar="FILE", help="Read the SQL from FILE (- is stdin).")
@format_option(*BINARY_FORMATS)
@click.option("-o", "--output", metavar="FILE", help="Write the answer to FILE instead of stdout.")
@click.option(
    "--max-rows",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    metavar="N",
    help="Answer with at most N rows; a remark says when there were more.",
)
@timeout_option(10.0, "How long the query may run.")
@click.option(
    "--memory",
    "memory_mb",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    metavar="MB",
    help="How much memory the query may use.",
)
@across_options
@click.pass_obj
def command(
    session: Session,
    sql: str | None,
    path: str | None,
    format_: str,
    output: str | None,
    max_rows: int,
    timeout_s: float,
    memory_mb: int,
    host_timeout_s: float,
    max_transfer_mib: float,
) -> int:
    """Ask one read-only SQL statement (DuckDB's dialect).

    Times are in seconds, memory in MiB, timestamps in UTC. Without SQL it is read from stdin.

    When no row comes because a table that is named has none yet, a remark says why and what to do, and the exit code is
    1; when no row fits, it is 0.

    Several endpoints answer as one database that holds all their rows; the columns host, pid and rank tell these apart.
    Each host computes what it can, so that little travels: EXPLAIN before the statement shows what each is asked. With
    --format json the answer is then an object: rows, columns, notes, and who answered and who did not.
    """
    import sys

    from probe_agent.wire import QueryRequest
    from probe_cli.answering import Across, ask

    if format_ in BINARY_FORMATS and output is None and sys.stdout.isatty():
        raise click.UsageError(f"{format_} is not for a terminal: pipe it, or name a file with -o FILE")
    request = QueryRequest(text_from(sql, path, "the SQL"), max_rows, timeout_s, memory_mb)
    return ask(session, request, Across(host_timeout_s, max_transfer_mib), format_, output)
