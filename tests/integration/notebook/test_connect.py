"""`probe_cli.connect` as a notebook uses it: on a thread whose event loop runs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TypeVar

import pandas
import polars
import pytest
from support.recorded_job import NUM_RANKS, NUM_STEPS, RecordedJob, recorded_job

import probe_cli
from probe_agent.errors import BadRequest, ProbeError, QueryFailed

T = TypeVar("T")

TARGET = """
import threading, time
threading.current_thread().name = "<script>alert(1)</script>"
threading.main_thread().name = "<script>alert(1)</script>"
number = 41
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedJob]:
    with recorded_job(tmp_path_factory.mktemp("job")) as job:
        yield job


@pytest.fixture(scope="module")
def target() -> Iterator[int]:
    command = [sys.executable, "-c", TARGET]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()


def in_a_loop(cell: Callable[[], T]) -> T:
    """Run a cell as a kernel does."""

    async def run() -> T:
        return cell()

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def _insecure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_INSECURE", "1")


def test_rows_become_a_data_frame_of_either_library(recorded: RecordedJob) -> None:
    job = probe_cli.connect(*recorded.addresses)

    answer = in_a_loop(lambda: job.sql("SELECT rank, count(*) AS n, max(ts) AS ts FROM python.steps GROUP BY rank"))

    of_pandas, of_polars = answer.df("pandas"), answer.df("polars")
    assert isinstance(of_pandas, pandas.DataFrame)
    assert isinstance(of_polars, polars.DataFrame)
    assert sorted(of_pandas["rank"]) == sorted(of_polars["rank"]) == list(range(NUM_RANKS))
    assert set(of_pandas["n"]) == {NUM_STEPS}
    assert polars.DataFrame(answer).equals(of_polars)
    assert answer.columns == ("rank", "n", "ts")
    assert len(answer) == NUM_RANKS
    assert "4 rows" in answer._repr_html_()
    assert repr(answer).splitlines()[0].split() == ["rank", "n", "ts"]


def test_who_did_not_answer_is_told_with_the_rows(recorded: RecordedJob) -> None:
    job = probe_cli.connect(recorded.addresses[0], "127.0.0.1:1")

    answer = in_a_loop(lambda: job.sql("SELECT count(*) FROM python.steps"))

    assert answer.rows[0][0] == 2 * NUM_STEPS
    assert "127.0.0.1:1 did not answer" in answer.unanswered[0]
    assert "<b>127.0.0.1:1 did not answer" in answer._repr_html_()


def test_an_error_is_shown_in_two_lines(recorded: RecordedJob) -> None:
    job = probe_cli.connect(recorded.addresses[0])

    with pytest.raises(QueryFailed) as failure:
        in_a_loop(lambda: job.sql("SELECT nothing FROM python.steps"))
    with pytest.raises(BadRequest):
        probe_cli.connect("no endpoint")

    message, hint = failure.value._render_traceback_()  # type: ignore[attr-defined]  # what IPython asks for
    assert message.startswith("probe: ")
    assert hint.startswith("try: ")


def test_a_living_target_shows_stacks_and_runs_code_and_no_name_becomes_markup(target: int) -> None:
    job = probe_cli.connect(target)

    stacks = in_a_loop(job.backtrace)
    output = in_a_loop(lambda: job.eval("print('<i>'); number + 1"))
    raised = in_a_loop(lambda: job.eval("1 / 0"))
    value = in_a_loop(lambda: job.sql("SELECT '<img src=x>' AS \"<b>\""))

    assert "time.sleep" in repr(stacks) or "<module>" in repr(stacks)
    assert "alert(1)" in stacks._repr_html_()
    assert output.text == "<i>\n42\n"
    assert output.failed == ()
    assert raised.failed == (str(target),)
    assert "ZeroDivisionError" in raised.text
    shown = "".join(one._repr_html_() for one in (stacks, output, raised, value))
    assert [mark for mark in ("<script", "<i>\n", "<img", "<b></th>") if mark in shown] == []


def test_a_diagnosis_tells_what_could_not_be_judged(target: int) -> None:
    found = in_a_loop(probe_cli.connect(target).diagnose)

    assert len(found.unjudged) > 0
    assert "could not judge" in repr(found)
    assert "not judged: " in found._repr_html_()


def test_magics_ask_and_keep_the_answer(recorded: RecordedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shell = interactive.InteractiveShell()
    shell.extension_manager.load_extension("probe_cli")
    asked = " ".join(recorded.addresses)

    answer = in_a_loop(
        lambda: shell.run_cell_magic("probe", f"-o kept {asked}", "SELECT max(step) AS step FROM python.steps")
    )
    printed = StringIO()
    with redirect_stdout(printed):
        in_a_loop(lambda: shell.run_line_magic("probe", f"{recorded.addresses[0]} query 'SELECT 41 + 1 AS n'"))

    assert answer.rows[0][0] == NUM_STEPS - 1
    assert shell.user_ns["kept"] is answer
    assert "42" in printed.getvalue()
    with pytest.raises(ProbeError, match="unrecognized"):
        shell.run_cell_magic("probe", "--nothing", "SELECT 1")
