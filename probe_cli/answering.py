"""One SQL question, from the request to what is written: rows for people and programs, Arrow and Parquet.

Runs in the CLI. Several endpoints answer as one database that holds all their rows (cluster/sql).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from probe_agent.wire import QueryRequest, QueryResult, decode

from .render.formats import BINARY_FORMATS
from .session import Session, remark

if TYPE_CHECKING:
    from .client import Client, Data
    from .cluster.fanout import Answers
    from .cluster.sql.execute import Outcome
    from .endpoint import Endpoint
    from .render import Sheet

__all__ = ["Across", "ask"]

#: The server ends a query at its limit; this much later we stop waiting for a server that does not.
GRACE_S = 3.0
#: The exit code when there are no rows because nothing is recorded, and not because none fits.
NO_DATA = 1
ARROW = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True)
class Across:
    """What a question to several endpoints may cost."""

    host_timeout_s: float = 5.0
    max_transfer_mib: float = 256.0


def ask(session: Session, request: QueryRequest, across: Across, format_: str, output: str | None) -> int:
    """Ask, and write the answer."""
    from .client.loop import run


    async def choose() -> int:
        return len(await session.choose())

    if run(choose()) > 1:
        return _ask_many(session, request, across, format_, output)
    return (_ask_arrow if format_ in BINARY_FORMATS else _ask_rows)(session, request, format_, output)


def _ask_rows(session: Session, request: QueryRequest, format_: str, output: str | None) -> int:
    from .render.show import show

    async def question(client: Client) -> QueryResult:
        return await client.send(QueryResult, "POST", "/v1/query", request)

    answers = session.ask(question, timeout_s=request.timeout_s + GRACE_S, needs_agent=False, of_many=True)
    for _, result in answers.answered:
        with _stdout_to(output):
            show(_sheet(result), format_, remark)
        for note in result.notes:
            remark(note)
    nothing = any(result.missing and not result.rows for _, result in answers.answered)
    return answers.exit_code or (NO_DATA if nothing else 0)


def _sheet(result: QueryResult) -> Sheet:
    from .render import Sheet

    columns = tuple(column.name for column in result.columns)
    return Sheet(columns, tuple(column.type for column in result.columns), result.rows)


def _ask_arrow(session: Session, request: QueryRequest, format_: str, output: str | None) -> int:
    async def question(client: Client) -> Data:
        return await client.data("/v1/query", request, ARROW)

    answers = session.ask(question, timeout_s=request.timeout_s + GRACE_S, needs_agent=False, of_many=True)
    for _, data in answers.answered:
        _write(data.body, format_, output)
        for note in data.notes:
            remark(note)
    return answers.exit_code


def _write(data: bytes, format_: str, output: str | None) -> None:
    if format_ == "parquet":
        from .render.columnar import parquet

        data = parquet(data)
    with _stdout_to(output):
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _ask_many(session: Session, request: QueryRequest, across: Across, format_: str, output: str | None) -> int:
    """Ask all endpoints as one database; who did not answer is said on stderr, and in JSON in the answer."""
    from .cluster.sql.database import expect_merging

    expect_merging()
    from .client.loop import run
    from .cluster.fanout import Answers, open_conversation
    from .cluster.sql.execute import answer

    is_binary = format_ in BINARY_FORMATS

    async def course() -> tuple[Outcome | None, Answers[Outcome | None]]:
        async with open_conversation(
            _each_once(await session.choose()),
            timeout_s=across.host_timeout_s,
            total_s=request.timeout_s,
            inject=session.inject,
            remark=remark,
        ) as conversation:
            outcome = await answer(
                conversation,
                request,
                max_bytes=int(across.max_transfer_mib * 2**20),
                host_timeout_s=across.host_timeout_s,
                arrow=is_binary,
            )
            answers = conversation.answers(outcome)
            return outcome, Answers(answers.answered, session.missing + answers.unanswered)

    outcome, answers = run(course())
    session.report(answers)
    if outcome is None:
        return answers.exit_code
    if is_binary:
        _write(outcome.answer.body, format_, output)
    else:
        result = decode(QueryResult, json.loads(outcome.answer.body))
        with _stdout_to(output):
            _show_merged(result, answers, format_)
    for note in outcome.answer.notes:
        remark(note)
    return answers.exit_code


def _each_once(endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """`endpoints` without single ranks of a host server that is asked for all of its own."""
    from .endpoint import TcpServer, UnixServer

    def one_of(endpoint: Endpoint) -> bool:
        if not isinstance(endpoint, TcpServer | UnixServer) or endpoint.rank is None:
            return False
        return replace(endpoint, rank=None) in endpoints

    return [endpoint for endpoint in endpoints if not one_of(endpoint)]


def _show_merged(result: QueryResult, answers: Answers[Outcome | None], format_: str) -> None:
    from .render.show import show

    sheet = _sheet(result)
    if format_ != "json":
        show(sheet, format_, remark)
        return
    whole = {
        "rows": list(sheet.records()),
        "columns": [{"name": column.name, "type": column.type} for column in result.columns],
        "truncated": result.truncated,
        "notes": result.notes,
        "answered": [str(endpoint) for endpoint, _ in answers.answered],
        "unanswered": [
            {"endpoint": str(endpoint), "message": error.message, "hint": error.hint}
            for endpoint, error in answers.unanswered
        ],
    }
    print(json.dumps(whole, ensure_ascii=False))


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
