"""`probe … report`: one zip for a bug report, with what is known of every rank and without secrets."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import click

from probe_agent import __version__
from probe_agent.errors import BadRequest
from probe_agent.recorder.guest.redaction import redacted_text
from probe_cli.cluster.fanout import Answers
from probe_cli.cluster.ranks.ended import told_first
from probe_cli.cluster.ranks.listing import Rank
from probe_cli.cluster.report import LEFT_OUT_TABLES, Limits, Taken, take
from probe_cli.messages import remark
from probe_cli.options import timeout_option
from probe_cli.render.columnar import parquet_writer
from probe_cli.render.stacks import stack_lines
from probe_cli.report_file import FORMAT, HEAD, README, VERSION, finding_file, stacks_file, table_file
from probe_cli.session import Session

from . import SHORT_HELP

__all__ = ["command"]

#: Commands whose output is in a report, those of them that there are. To add one, add its name.
FINDINGS = ("status", "diagnose", "hang", "compare", "memory")
FINDING_S = 60.0
#: Rows of one table: of one rank, and of all of them together.
MAX_ROWS, MAX_ROWS_IN_ALL = 10_000, 200_000
_README = """\
Report of Probe {probe}, made on {host} at {made_at}.

{targets}

What is in it:
  findings/           what these commands said: {findings}
  ranks/*/info.json   command line, versions of Python and torch, state, newest step
  ranks/*/stacks.txt  stacks of all threads, asyncio tasks and DataLoader workers; stacks.json for programs
  ranks/*/tables/     tables as Parquet, the newest {num_rows} rows of each. process.env has versions, hardware,
                      driver and environment variables, torch.flight_recorder the collectives.

Open it with Probe:
  probe FILE.zip hang
  probe FILE.zip backtrace --all-ranks
  probe FILE.zip query "SELECT rank, max(step) FROM python.steps GROUP BY rank"

Secrets are replaced by *** where a name (key, token, secret, password) or a URL tells them. Stacks show lines of
source code, and tables the names of files and hosts. Look into it before you send it.

What was left out:
  local variables, C frames, {tables} (code that others have evaluated), environment variables that do not
  concern training
{left_out}
"""
#: A command that also writes its envelope to a file.
_PROBE = """
import sys
from probe_cli.main import main
from probe_cli.render import show
show.envelope_file = sys.argv.pop(1)
main()
"""


@click.command("report")
@click.option("-o", "--output", metavar="FILE", help="Name of the zip; by default probe-report-TIME.zip.")
@click.option(
    "--max-rows",
    type=click.IntRange(min=1, max=1_000_000),
    metavar="N",
    help="Newest rows of each table and rank; by default 10000, fewer of more than 20 ranks.",
)
@timeout_option(5.0, "How long one question to a target may take.")
@click.pass_obj
def command(session: Session, output: str | None, max_rows: int | None, timeout_s: float) -> int:
    """Write one zip for a bug report, of one target or all ranks of a job, living or ended.

    In it: versions, hardware, driver, launch command, selected environment variables, stacks of all threads, Flight
    Recorder and all other tables as Parquet, and what status, diagnose, hang and compare say. README.txt lists it in
    plain words, and what was left out. Secrets are replaced by *** where their names tell them: look into it before
    you send it.

    It opens as an endpoint: probe FILE.zip query …, backtrace, ranks, tables, hang.
    """
    made = datetime.now(timezone.utc)
    path = output or f"probe-report-{made:%Y%m%d-%H%M%S}.zip"
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise BadRequest(f"cannot write {path}: its folder does not exist", "name a file in a folder that exists")
    names = [name for name in FINDINGS if name in SHORT_HELP]
    try:
        with TemporaryDirectory(prefix="probe-") as folder, ThreadPoolExecutor(len(names)) as pool:
            ranks = session.list_ranks()
            told = {name: pool.submit(_finding, session, name, f"{folder}/{name}.json") for name in names}
            limits = Limits(max_rows or min(MAX_ROWS, MAX_ROWS_IN_ALL // max(1, len(ranks.answered)) + 1), timeout_s)
            answers = session.ask_ranks(take(limits), timeout_s=None, ranks=ranks)
            findings = {name: one.result() for name, one in told.items()}
        _write(path, made, ranks, answers, findings, limits)
    except OSError as error:
        raise BadRequest(f"cannot write {path}: {error.strerror}", "name a file that you may write") from None
    num, size = len(answers.answered), os.path.getsize(path) / (1 << 20)
    remark(f"{path}: {num} target{'s' if num > 1 else ''}, {size:.1f} MiB; open it with: probe {path} query …")
    return answers.exit_code


class Finding(NamedTuple):
    """Output of one command, for people and for programs."""

    exit_code: int
    text: str
    envelope: str


def _finding(session: Session, name: str, envelope_file: str) -> Finding:
    """Run a command about the same targets."""
    flags = ["--all"] * session.everyone + ["--no-inject"] * (not session.inject) + ["--itself"] * session.itself
    flags += ["--rank", ",".join(map(str, sorted(session.ranks)))] if session.ranks else []
    flags += [word for endpoint in session.named for word in ("-t", str(endpoint))]
    words = [sys.executable, "-c", _PROBE, envelope_file, *flags, name]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=FINDING_S
        )
    except subprocess.TimeoutExpired:
        return Finding(4, f"no answer within {FINDING_S:g} s\n", "")
    try:
        told = json.loads(Path(envelope_file).read_text(encoding="utf-8"))
    except FileNotFoundError:  # it has failed, and said so
        return Finding(done.returncode, done.stdout + done.stderr, "")
    return Finding(done.returncode, done.stdout + done.stderr, _json(told))


def _write(
    path: str,
    made: datetime,
    ranks: Answers[Rank],
    answers: Answers[Taken],
    findings: Mapping[str, Finding],
    limits: Limits,
) -> None:
    known = {endpoint: one.info for endpoint, one in ranks.answered}
    left_out = [f"{endpoint}: {error.message}" for endpoint, error in answers.unanswered]
    targets: list[dict[str, Any]] = []
    tables: dict[str, Any] = {}
    # Whoever may read it is for its owner to say.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with (
        open(descriptor, "wb") as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        parquet_writer() as parquet,
    ):
        for endpoint, taken in answers.answered:
            info = known[endpoint]
            folder = f"ranks/{'unknown' if info.rank is None else info.rank}-{info.pid}"
            if any(target["folder"] == folder for target in targets):
                folder += f"-{len(targets)}"  # hosts may give the same number
            targets.append({"folder": folder, "info": asdict(info)})
            _add_json(archive, f"{folder}/info.json", asdict(info))
            if taken.stacks is not None:
                _add_json(archive, stacks_file(folder), asdict(taken.stacks))
                lines = [*stack_lines(taken.stacks, False), *taken.stacks.notes]
                _add(archive, f"{folder}/stacks.txt", "\n".join(lines))
            for name, stream in taken.rows.items():
                try:
                    archive.writestr(
                        table_file(folder, name), parquet(stream, redacted_text), compress_type=zipfile.ZIP_STORED
                    )
                except (ValueError, RuntimeError) as error:
                    taken.left_out.append(f"{name}: its rows cannot be read: {error}")
            tables.update({table.name: asdict(table) for table in taken.tables})
            left_out += [f"rank {'unknown' if info.rank is None else info.rank}: {said}" for said in taken.left_out]
        for name, finding in findings.items():
            _add(archive, finding_file(name, "txt"), finding.text)
            archive.writestr(finding_file(name, "json"), finding.envelope)
        left_out = [redacted_text(said) for said in left_out]
        head = {
            "format": FORMAT,
            "version": VERSION,
            "made_at": made.isoformat(timespec="seconds"),
            "probe": __version__,
            "targets": targets,
            "tables": [{**table, "rows": None, "lost": None} for _, table in sorted(tables.items())],
            "findings": {name: finding.exit_code for name, finding in findings.items()},
            "left_out": left_out,
        }
        _add_json(archive, HEAD, head)
        ended = told_first([one.info for _, one in ranks.answered])
        _add(archive, README, _readme(head, ended, limits))


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    archive.writestr(name, redacted_text(text))


def _add_json(archive: zipfile.ZipFile, name: str, content: object) -> None:
    archive.writestr(name, _json(content))


def _json(content: object) -> str:
    return json.dumps(_redacted(content), indent=1, ensure_ascii=False)


def _redacted(content: Any) -> Any:  # decoded JSON
    if isinstance(content, str):
        return redacted_text(content)
    if isinstance(content, Mapping):
        return {key: _redacted(value) for key, value in content.items()}
    if isinstance(content, Sequence):
        return [_redacted(value) for value in content]
    return content


def _readme(head: Mapping[str, Any], ended: Sequence[str], limits: Limits) -> str:
    return _README.format(
        probe=head["probe"],
        host=platform.node(),
        made_at=head["made_at"],
        targets="\n".join([*map(_target_line, head["targets"]), *ended]),
        findings=", ".join(head["findings"]),
        num_rows=f"{limits.num_rows:,}",
        tables=", ".join(LEFT_OUT_TABLES),
        left_out="\n".join(f"  {said}" for said in head["left_out"]),
    )


def _target_line(target: Mapping[str, Any]) -> str:
    info = target["info"]
    state = info["state"] if info["alive"] else info["ended"] or "ended"
    step = "no step" if info["step"] is None else f"step {info['step']}"
    rank = f"rank {info['rank']} of {info['world_size']}"
    return f"{target['folder']}: {rank}, pid {info['pid']} on {info['host']}, {step}, {state}"
