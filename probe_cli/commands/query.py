"""`probe … query`: SQL over what the target recorded and where it is now."""

from __future__ import annotations

import sys

import click

from probe_agent.errors import BadRequest
from probe_agent.wire import QueryRequest
from probe_cli.cluster.query import Limits
from probe_cli.messages import remark
from probe_cli.options import format_option, limits_options, text_from, timeout_option
from probe_cli.render.output import stdout_to, write_bytes
from probe_cli.render.result import show_result
from probe_cli.render.sheet import BINARY_FORMATS
from probe_cli.session import Session

__all__ = ["command"]


@click.command("query")
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
    help="Return at most N rows; a remark says if there were more.",
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
@limits_options
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
    """Run one read-only SQL statement (DuckDB's dialect).

    Times are in seconds, memory in MiB, timestamps in UTC. Without SQL it is read from stdin.

    If no row comes because a table in the statement has none yet, a remark says why and what to do, and the exit code
    is 1; if no row matches, it is 0.

    Several endpoints answer as one database that holds all their rows; the columns host, pid and rank tell these apart.
    Each host computes what it can, so that little travels; EXPLAIN in front of the statement shows what each is asked.
    With --format json the answer of several endpoints is an object with rows, columns, notes, answered and unanswered;
    --format envelope gives that object for one endpoint too.
    """
    if format_ in BINARY_FORMATS and output is None and sys.stdout.isatty():
        raise BadRequest(f"{format_} is not for a terminal", "pipe it, or name a file with -o FILE")
    request = QueryRequest(text_from(sql, path, "the SQL"), max_rows, timeout_s, memory_mb)
    limits = Limits(host_timeout_s, max_transfer_mib)
    if format_ not in BINARY_FORMATS:
        return show_result(session.query(request, limits), format_, output)
    answers = session.query_arrow(request, limits)
    for _, data in answers.answered[:1]:  # several have one answer together
        body = data.body
        if format_ == "parquet":
            from probe_cli.render.columnar import parquet_writer  # a door: DuckDB and nanoarrow, for this format alone

            with parquet_writer() as parquet:
                body = parquet(body)
        with stdout_to(output):
            write_bytes(body)
        for note in data.notes:
            remark(note)
    return answers.exit_code
