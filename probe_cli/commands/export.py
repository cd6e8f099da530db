"""`probe … export`: what a job has recorded, in files that other tools open."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import time

import click

from probe_agent.errors import BadRequest, NoAnswer
from probe_agent.wire import TableInfo
from probe_cli.client.loop import run
from probe_cli.cluster.compare.clocks import clocks_of
from probe_cli.cluster.fanout import Answers
from probe_cli.cluster.ranks.listing import Rank
from probe_cli.cluster.report import Limits
from probe_cli.endpoint import Endpoint
from probe_cli.export.tables import Saved, file_names, save_tables, write_database
from probe_cli.export.timeline import on_one_clock, told_by
from probe_cli.export.trace import trace_of, write_trace
from probe_cli.messages import remark
from probe_cli.options import timeout_option
from probe_cli.progress import progress
from probe_cli.render.output import written_file
from probe_cli.session import Session
from probe_cli.text import mebibytes, num_ranks, seconds

__all__ = ["command"]

#: Questions to one rank for a trace.
NUM_QUESTIONS = 8


@click.command("export")
@click.option("--perfetto", metavar="FILE", help="A timeline for ui.perfetto.dev; compressed if FILE ends with .gz.")
@click.option("--parquet", "folder", metavar="FOLDER", help="FOLDER/TABLE/rank-RANK-PID.parquet.")
@click.option("--duckdb", "database", metavar="FILE", help="A DuckDB file with the rows of all ranks in each table.")
@click.option(
    "--steps",
    "num_steps",
    type=click.IntRange(1, 5000),
    default=200,
    show_default=True,
    metavar="N",
    help="With --perfetto: the newest N steps of each rank.",
)
@click.option("--table", "tables", multiple=True, metavar="TABLE", help="Only this table; may be given several times.")
@click.option(
    "--max-rows",
    type=click.IntRange(min=1),
    default=200_000,
    show_default=True,
    metavar="N",
    help="Newest rows of each table and rank.",
)
@timeout_option(30.0, "How long one question to a rank may take.")
@click.pass_obj
def command(
    session: Session,
    perfetto: str | None,
    folder: str | None,
    database: str | None,
    num_steps: int,
    tables: Sequence[str],
    max_rows: int,
    timeout_s: float,
) -> int:
    """Write what a job has recorded to files for other tools: a timeline for Perfetto, Parquet, or DuckDB.

    Of one target or, with --all, of all ranks of its job; living, ended, or in a report. The timeline has the steps,
    phases, modules and collectives of all ranks on one clock, and arrows through the ranks of a collective in the order
    in which they came to it. Phases are drawn in their usual order: only their durations are recorded.

    \b
    Examples:
      probe -t PID --all export --perfetto job.json.gz
      probe PID export --parquet tables --duckdb job.duckdb --table python.steps

    Exit code 3 if some ranks did not answer: what the others have told is written.
    """
    _check(perfetto, folder, database, tables)
    ranks = session.list_ranks()
    code = ranks.exit_code
    if perfetto is not None:
        code = max(code, _timeline(session, ranks, perfetto, num_steps, timeout_s))
    if folder is not None or database is not None:
        limits = Limits(max_rows, timeout_s, frozenset(tables))
        code = max(code, _tables(session, ranks, folder, database, limits))
    return code


def _check(perfetto: str | None, folder: str | None, database: str | None, tables: Sequence[str]) -> None:
    """Refuse what cannot be written, before anybody is asked."""
    paths = [path for path in (perfetto, folder, database) if path is not None]
    if not paths:
        raise BadRequest(
            "nothing to write: no file is named", "name one: --perfetto FILE, --parquet FOLDER or --duckdb FILE"
        )
    if tables and folder is None and database is None:
        raise BadRequest("--table is for --parquet and --duckdb", "add one of them, or leave out --table")
    for path in paths:
        if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            raise BadRequest(f"cannot write {path}: its folder does not exist", "name a file in a folder that exists")
    if folder is not None and os.path.exists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        raise BadRequest(f"{folder} exists already, and is not an empty folder", "name a new folder")
    if database is not None and os.path.exists(database):  # a database may hold more than what was written here
        raise BadRequest(f"{database} exists already", "name a new file, or remove this one first")


def _timeline(session: Session, ranks: Answers[Rank], path: str, num_steps: int, timeout_s: float) -> int:
    """Write the trace; returns the exit code."""
    known = dict(ranks.answered)
    clocks = run(clocks_of({one.info.host: endpoint for endpoint, one in ranks.answered}))
    question = told_by(num_steps, max(1, len(known)), timeout_s)
    answers = session.ask_ranks(question, timeout_s=NUM_QUESTIONS * timeout_s, ranks=ranks)
    told = on_one_clock(answers.answered, known, clocks)
    with progress("drawing the timeline"):
        trace = trace_of(told, num_steps, time())
        if not trace.num_slices:
            raise NoAnswer(
                "there is nothing to draw: no step, module or collective is recorded",
                "wait for the first steps, or see why: probe … query 'SELECT * FROM python.steps'",
            )
        with written_file(path) as file:
            write_trace(file, trace)
    for one in told:
        for gap in one.facts.gaps:
            remark(f"{one.facts.who} could not tell {gap}")
    hosts = {one.facts.who.host for one in told}
    unknown = sorted(hosts - clocks.keys())
    if unknown and len(hosts) > 1:
        remark(f"the clocks of {', '.join(unknown)} cannot be asked: their ranks may be shifted against the others")
    elif len(hosts) > 1:
        most = max(clocks[host].uncertainty for host in hosts)
        remark(f"{len(hosts)} hosts on one clock, ±{seconds(most)}")
    named = num_ranks(one.facts.who.rank for one in told)
    remark(f"{named}, {trace.num_slices:,} slices, {_size(path)}; open it in ui.perfetto.dev")
    return answers.exit_code


def _tables(session: Session, ranks: Answers[Rank], folder: str | None, database: str | None, limits: Limits) -> int:
    """Write Parquet files, and the database from them; returns the exit code."""
    with _new_folder(folder) as part, progress("writing tables", len(ranks.answered)) as work:
        question = save_tables(limits, part, file_names(ranks.answered), work)
        answers = session.ask_ranks(question, timeout_s=None, ranks=ranks)
        _check_tables(limits, answers)
        if database is not None:
            _write_database(database, part, [table for _, saved in answers.answered for table in saved.tables])
        num_tables = len(list(part.iterdir()))
    for endpoint, saved in answers.answered:
        for said in saved.left_out:
            remark(f"{_name(ranks, endpoint)}: {said}")
    named = f"{num_tables} tables of {len(answers.answered)} target{'s' if answers.answered[1:] else ''}"
    for path in (folder, database):
        if path is not None:
            remark(f"{path}: {named}, {_size(path)}")
    return answers.exit_code


def _check_tables(limits: Limits, answers: Answers[Saved]) -> None:
    known = {table.name for _, saved in answers.answered for table in saved.tables}
    missing = sorted(limits.only - known)
    if missing and answers.answered:
        raise BadRequest(f"no target has a table {', '.join(missing)}", "list the tables with: probe … tables")


@contextmanager
def _new_folder(folder: str | None) -> Iterator[Path]:
    """A folder to write to, which becomes `folder` at the end, if there is one; it is removed after an error."""
    beside = os.path.dirname(os.path.abspath(folder)) if folder is not None else None
    with tempfile.TemporaryDirectory(prefix="probe-export-", dir=beside) as part:
        own = Path(part) / "tables"
        own.mkdir()
        yield own
        if folder is not None:
            if os.path.isdir(folder):
                os.rmdir(folder)  # it is empty
            os.replace(own, folder)


def _write_database(path: str, folder: Path, tables: Sequence[TableInfo]) -> None:
    part = Path(f"{path}.part")
    part.unlink(missing_ok=True)
    try:
        write_database(part, folder, tables)
        os.replace(part, path)
    except OSError as refusal:
        raise BadRequest(f"cannot write {path}: {refusal.strerror}", "name a file in a writable folder") from refusal
    finally:
        part.unlink(missing_ok=True)


def _size(path: str) -> str:
    if os.path.isdir(path):
        num_bytes = sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
    else:
        num_bytes = os.path.getsize(path)
    return mebibytes(num_bytes / (1 << 20))


def _name(ranks: Answers[Rank], endpoint: Endpoint) -> str:
    info = dict(ranks.answered)[endpoint].info
    return f"pid {info.pid}" if info.rank is None else f"rank {info.rank}"
