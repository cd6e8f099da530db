"""The two kinds of profile, from the request to the table or the file.

Runs in the CLI. Leaving early (Ctrl-C) ends the profile at the other end. What is written is written here, beside the
user, and a file that is not whole is not left behind.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, cast

import click

from probe_agent.errors import BadRequest, NoAnswer
from probe_agent.wire import CpuProfileRequest, ProfileLine, ProfileRequest

from .session import Session, remark

if TYPE_CHECKING:
    from .client import Client, Data
    from .render import Sheet

__all__ = ["CPU_FORMATS", "profile_cpu", "profile_steps"]

#: The ending of the file -> what is written.
CPU_FORMATS = {".svg": "svg", ".html": "html", ".json": "speedscope", ".folded": "folded"}
MAX_ROWS = 20
#: py-spy starts, and afterwards draws, within this.
GRACE_S = 40.0
_TYPES = {"name": "VARCHAR", "input_shapes": "VARCHAR", "device": "VARCHAR", "calls": "BIGINT"}


def profile_steps(session: Session, wanted: ProfileRequest, path: str | None, format_: str) -> int:
    """Profile whole steps; show the operators, and write the trace to `path`."""
    from .render.show import show_each

    if path is not None and session.num_endpoints > 1:
        raise click.UsageError("one file cannot hold several traces: profile the targets one by one")

    async def question(client: Client) -> tuple[Sheet, ProfileLine]:
        return await _follow(client, wanted, path)

    answers = session.ask(question, timeout_s=None)
    shown = []
    for endpoint, (sheet, end) in answers.answered:
        of = "" if answers.num_asked == 1 else f"{endpoint}: "
        remark(f"{of}{end.steps} steps from step {end.step} on" + "".join(f"; {note}" for note in end.notes))
        rows = sheet.rows if format_ != "table" else sheet.rows[:MAX_ROWS]
        if len(rows) < len(sheet.rows):
            remark(f"{of}{len(sheet.rows) - len(rows)} more operators are in python.profile_ops")
        shown.append((endpoint, type(sheet)(sheet.columns, sheet.types, rows)))
    show_each(shown, format_, remark)
    return answers.exit_code


async def _follow(client: Client, wanted: ProfileRequest, path: str | None) -> tuple[Sheet, ProfileLine]:
    from .render import Sheet

    sheet, end, said = None, None, "it broke off"
    with contextlib.ExitStack() as files:
        file = files.enter_context(_writing(path)) if path is not None else None
        answer = client.lines(ProfileLine, "/v1/profile/steps", wanted)
        async with contextlib.aclosing(answer) as lines:  # type: ignore[type-var]  # a generator, as its type does not say
            async for line in lines:
                if line.rows is not None and line.columns is not None:
                    types = tuple(_TYPES.get(name, "DOUBLE") for name in line.columns)
                    sheet = Sheet(*_with_values(line.columns, types, line.rows))
                if line.trace is not None and file is not None:
                    file.write(base64.b64decode(line.trace))
                said = line.note or said
                end = line if line.done else end
        if sheet is None or end is None:
            raise NoAnswer(
                f"{client.endpoint} did not finish the profile: {said}", "did the process end? see: probe list"
            )
    return sheet, end


def _with_values(
    columns: tuple[str, ...], types: tuple[str, ...], rows: Sequence[Sequence[object]]
) -> tuple[tuple[str, ...], tuple[str, ...], list[list[object]]]:
    """Without the columns that are NULL or 0 throughout: there is no device, or nobody asked for memory."""
    kept = [at for at in range(len(columns)) if any(row[at] not in (None, 0) for row in rows)]
    return (
        tuple(columns[at] for at in kept),
        tuple(types[at] for at in kept),
        [[row[at] for at in kept] for row in rows],
    )


def profile_cpu(
    session: Session, seconds: float, rate: int, idle: bool, path: str | None, by: str | None, format_: str
) -> int:
    """Sample stacks; show the job's functions and the hottest lines, or write what the ending of `path` says."""
    from .render.hottest import by_function, hottest
    from .render.show import show_each

    kind = "folded"
    if path is not None:
        if session.num_endpoints > 1:
            raise click.UsageError("one file cannot hold several profiles: take them one by one")
        kind = CPU_FORMATS.get(os.path.splitext(path)[1], "")
        if not kind:
            raise click.UsageError(f"{path}: the ending says what is written: {', '.join(CPU_FORMATS)}")
    if seconds != int(seconds) or seconds < 1:
        raise click.UsageError("--cpu takes whole seconds")
    wanted = CpuProfileRequest(int(seconds), rate, idle, kind)  # type: ignore[arg-type]  # one of CPU_FORMATS

    async def question(client: Client) -> Data:
        return await client.data("/v1/profile/cpu", wanted)

    session.inject = False  # it is read from outside
    answers = session.ask(question, timeout_s=seconds + GRACE_S, needs_agent=False)
    for endpoint, data in answers.answered:
        for note in data.notes:
            remark(note if answers.num_asked == 1 else f"{endpoint}: {note}")
    if path is None:
        limit = MAX_ROWS if format_ == "table" else 1_000_000
        shown = {"function": by_function, "line": hottest}
        ways = ([by] if by else ["function", "line"]) if format_ == "table" else [by or "line"]
        for at, way in enumerate(ways):
            if at:
                print()
            sheets = [(who, shown[way](data.body.decode(), rate, limit)) for who, data in answers.answered]
            show_each(sheets, format_, remark)
    for _, data in answers.answered if path is not None else ():
        with _writing(cast(str, path)) as file:
            file.write(data.body)
    return answers.exit_code


@contextlib.contextmanager
def _writing(path: str) -> Iterator[BinaryIO]:
    """The file `path`, which is there when all went well; compressed where its name ends with .gz."""
    part = f"{path}.part"
    try:
        file = cast(BinaryIO, gzip.open(part, "wb") if path.endswith(".gz") else open(part, "wb"))  # noqa: SIM115
    except OSError as refusal:
        raise BadRequest(f"cannot write {path}: {refusal.strerror}") from refusal
    try:
        with file:
            yield file
        if os.path.getsize(part):
            os.replace(part, path)
            remark(f"written: {path}")
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
