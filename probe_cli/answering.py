"""One SQL question, from the request to what is written: rows for people and programs, Arrow and Parquet.

Runs in the CLI. Several targets are answered as one database holding all their rows (cluster/merge.py).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from probe_agent.wire import QueryRequest, QueryResult

from .session import Session, remark

if TYPE_CHECKING:
    from .client import Client
    from .render import Sheet

__all__ = ["ask_arrow", "ask_rows"]

#: The server ends a query at its limit; this much later we stop waiting for a server that does not.
GRACE_S = 3.0
ARROW = "application/vnd.apache.arrow.stream"


def ask_rows(session: Session, request: QueryRequest, format_: str, output: str | None) -> int:
    """Ask, and write the rows in a text format."""
    from .render.show import show_each

    async def question(client: Client) -> QueryResult:
        return await client.send(QueryResult, "POST", "/v1/query", request)

    answers = session.ask(question, timeout_s=request.timeout_s + GRACE_S, needs_agent=False, of_many=True)
    sheets = [(endpoint, _sheet(result)) for endpoint, result in answers.answered]
    with _stdout_to(output):
        show_each(sheets, format_, remark)
    for endpoint, result in answers.answered:
        for note in result.notes:
            remark(note if answers.num_asked == 1 else f"{endpoint}: {note}")
    if answers.num_asked > 1:
        remark("each target answered for its own rows; they are not merged yet")
    return answers.exit_code


def _sheet(result: QueryResult) -> Sheet:
    from .render import Sheet

    columns = tuple(column.name for column in result.columns)
    return Sheet(columns, tuple(column.type for column in result.columns), result.rows)


def ask_arrow(session: Session, request: QueryRequest, format_: str, output: str | None) -> int:
    """Ask, and write the rows as an Arrow IPC stream or a Parquet file."""

    async def question(client: Client) -> tuple[bytes, list[str]]:
        return await client.data("/v1/query", request, ARROW)

    if session.num_endpoints > 1:
        raise click.UsageError(f"{format_} of several targets is not supported yet: ask them one by one")
    answers = session.ask(question, timeout_s=request.timeout_s + GRACE_S, needs_agent=False, of_many=True)
    for _, (data, notes) in answers.answered:
        if format_ == "parquet":
            from .render.columnar import parquet

            data = parquet(data)
        with _stdout_to(output):
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        for note in notes:
            remark(note)
    return answers.exit_code


@contextlib.contextmanager
def _stdout_to(path: str | None) -> Iterator[None]:
    """Let what is printed go to the file `path`; an answer that is not whole leaves no file."""
    if path is None:
        yield
        return
    part = f"{path}.part"
    try:
        file = open(part, "w", encoding="utf-8", newline="")  # noqa: SIM115  # closed below, before the rename
    except OSError as refusal:
        raise click.UsageError(f"cannot write {path}: {refusal.strerror}") from refusal
    try:
        with file, contextlib.redirect_stdout(file):
            yield
    except BaseException:
        os.unlink(part)
        raise
    os.replace(part, path)
