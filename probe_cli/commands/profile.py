"""`probe … profile`: operators of some steps by torch's profiler, or the CPU's hottest lines by sampling.

Leaving early (Ctrl-C) ends the profile at the other end. Files are written here, beside the user, and one that is not
whole is not left behind.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Sequence

import click

from probe_agent.errors import BadRequest, NoAnswer
from probe_agent.wire import CpuProfileRequest, ProfileLine, ProfileRequest
from probe_cli.client import Client, Data
from probe_cli.messages import remark
from probe_cli.options import format_option, seconds, timeout_option
from probe_cli.render import Sheet
from probe_cli.render.hottest import by_function, hottest
from probe_cli.render.output import written_file
from probe_cli.render.show import show_answers
from probe_cli.session import Session

__all__ = ["command"]

#: The extension of the file -> what is written.
CPU_FORMATS = {".svg": "svg", ".html": "html", ".json": "speedscope", ".folded": "folded"}
MAX_ROWS = 20
#: py-spy starts, and afterwards draws, within this.
GRACE_S = 40.0
_TYPES = {"name": "VARCHAR", "input_shapes": "VARCHAR", "device": "VARCHAR", "calls": "BIGINT"}


@click.command("profile")
@click.option("--steps", type=click.IntRange(1, 100), metavar="N", help="Profile exactly N steps.  [default: 3]")
@click.option("--cpu", "cpu_s", callback=seconds, metavar="TIME", help="Sample stacks for TIME instead: 10s, 2m.")
@click.option(
    "-o",
    "--out",
    "path",
    metavar="FILE",
    help="With --steps a Chrome trace for Perfetto (.json, .json.gz); with --cpu a flame graph (.svg, .html), a file"
    " for speedscope (.json), or one line a stack (.folded).",
)
@click.option("--shapes", is_flag=True, help="With --steps: tell calls with different input shapes apart.")
@click.option(
    "--memory",
    is_flag=True,
    help="With --steps: what operators allocate. On a CPU torch prints a line on the job's stderr.",
)
@click.option(
    "--rate", type=click.IntRange(1, 1000), default=100, show_default=True, help="With --cpu: samples a second."
)
@click.option(
    "--by",
    type=click.Choice(["function", "line"]),
    help="With --cpu: the job's own functions or single lines.  [default: both; line in other formats]",
)
@click.option("--idle", is_flag=True, help="With --cpu: also threads that wait.")
@format_option()
@timeout_option(60.0, "How long to wait for the steps.")
@click.pass_obj
def command(
    session: Session,
    steps: int | None,
    cpu_s: float | None,
    path: str | None,
    shapes: bool,
    memory: bool,
    rate: int,
    by: str | None,
    idle: bool,
    format_: str,
    timeout_s: float,
) -> int:
    """Run torch's profiler over whole steps of the training thread, and show its operators; they are rows of
    python.profile_ops afterwards. The profiled steps are slower, their results the same. Ctrl-C stops the profiler when
    the step ends.

    With --cpu, sample the stacks of all threads from outside, and show the job's functions (each with what libraries
    do for it) and the lines that take most. The process is not stopped, and needs no recorder. Probe's own threads are
    left out; a remark says how many samples these were, and how many are lost.
    """
    if path is not None and session.num_endpoints > 1:
        raise BadRequest("one file cannot hold several profiles", "profile the targets one by one")
    if cpu_s is None:
        wanted = ProfileRequest(3 if steps is None else steps, timeout_s, shapes, memory, trace=path is not None)
        return _profile_steps(session, wanted, path, format_)
    if steps is not None or shapes or memory:
        raise BadRequest("--cpu excludes --steps, --shapes and --memory: these are for torch's profiler", "drop --cpu")
    return _profile_cpu(session, cpu_s, rate, idle, path, by, format_)


def _profile_steps(session: Session, wanted: ProfileRequest, path: str | None, format_: str) -> int:
    """Profile whole steps; show the operators, and write the trace to `path`."""

    async def question(client: Client) -> tuple[Sheet, ProfileLine]:
        return await _follow(client, wanted, path)

    answers = session.ask(question, timeout_s=None, doing=f"profiling {wanted.steps} steps")
    shown, notes = [], []
    for endpoint, (sheet, end) in answers.answered:
        notes.append(
            (endpoint, f"{end.steps} steps from step {end.step} on" + "".join(f"; {one}" for one in end.notes))
        )
        rows = sheet.rows if format_ != "table" else sheet.rows[:MAX_ROWS]
        if len(rows) < len(sheet.rows):
            notes.append((endpoint, f"{len(sheet.rows) - len(rows)} more operators are in python.profile_ops"))
        shown.append((endpoint, Sheet(sheet.columns, sheet.types, rows)))
    show_answers(answers, shown, format_, notes)
    return answers.exit_code


async def _follow(client: Client, wanted: ProfileRequest, path: str | None) -> tuple[Sheet, ProfileLine]:
    sheet, end, said = None, None, "it broke off"
    with contextlib.ExitStack() as files:
        file = files.enter_context(written_file(path)) if path is not None else None
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
            raise NoAnswer(f"{client.endpoint} did not finish the profile: {said}", "see: probe list --dead")
    return sheet, end


def _with_values(
    columns: tuple[str, ...], types: tuple[str, ...], rows: Sequence[Sequence[object]]
) -> tuple[tuple[str, ...], tuple[str, ...], list[list[object]]]:
    """Without the columns that are NULL or 0 throughout: there is no device, or memory was not asked for."""
    kept = [at for at in range(len(columns)) if any(row[at] not in (None, 0) for row in rows)]
    return (
        tuple(columns[at] for at in kept),
        tuple(types[at] for at in kept),
        [[row[at] for at in kept] for row in rows],
    )


def _profile_cpu(
    session: Session, duration_s: float, rate: int, idle: bool, path: str | None, by: str | None, format_: str
) -> int:
    """Sample stacks; show the job's functions and the hottest lines, or write what the extension of `path` says."""
    kind = "folded" if path is None else CPU_FORMATS.get(os.path.splitext(path)[1], "")
    if not kind:
        raise BadRequest(f"{path}: unsupported file extension", "use .svg, .html, .json or .folded")
    if duration_s != int(duration_s) or duration_s < 1:
        raise BadRequest(f"--cpu takes whole seconds, and not {duration_s:g}", "use 10s or 2m")
    wanted = CpuProfileRequest(int(duration_s), rate, idle, kind)  # type: ignore[arg-type]  # one of CPU_FORMATS

    async def question(client: Client) -> Data:
        return await client.data("/v1/profile/cpu", wanted)

    session.inject = False  # it is read from outside
    doing = f"sampling for {duration_s:g} s"
    answers = session.ask(question, timeout_s=duration_s + GRACE_S, needs_agent=False, doing=doing)
    notes = [(endpoint, note) for endpoint, data in answers.answered for note in data.notes]
    if path is None:
        limit = MAX_ROWS if format_ == "table" else 1_000_000
        shown = {"function": by_function, "line": hottest}
        ways = ([by] if by else ["function", "line"]) if format_ == "table" else [by or "line"]
        for at, way in enumerate(ways):
            if at:
                print()
            sheets = [(endpoint, shown[way](data.body.decode(), rate, limit)) for endpoint, data in answers.answered]
            show_answers(answers, sheets, format_, [] if at else notes)
        return answers.exit_code
    for _, data in answers.answered:
        for note in data.notes:
            remark(note)
        with written_file(path) as file:
            file.write(data.body)
    return answers.exit_code
