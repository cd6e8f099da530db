"""Rules for every test: nothing is written into the home of the user, few tests may run twice, no two jobs of several
ranks run at once, and none computes with more threads than it asks for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.busy_machine import MARK, ONLY_MARKED_FAILED, marked_tests

from probe_agent.server.start import stop_server

#: Folders of tests that run jobs of several ranks. Each such job takes all processors.
SEVERAL_RANKS = {"dashboard", "diagnose", "distributed", "hangs", "ranks", "report", "stalls", "stragglers", "together"}

# Before torch is imported. Threads that wait for one another while several tests share the processors make 300 steps of
# a small model last 20 s instead of 3.
os.environ.setdefault("OMP_NUM_THREADS", "1")

#: Of each report of a failure, whether its test has the mark.
_failures: list[bool] = []


@pytest.fixture(scope="session", autouse=True)
def folders_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Redirect the tokens and audit files of everything that the tests start, and the host server that their commands
    share: it ends with the tests. The path of a socket must be short."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(prefix="probe-") as runtime:
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name)))
        patch.setenv("PROBE_RUNTIME_DIR", runtime)
        patch.setenv("PROBE_DEAD_HOURS", "0.1")  # what the tests leave is not kept for a day
        yield
        stop_server()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out a file at a time, and all those with jobs of several ranks to one worker."""
    from xdist.scheduler import LoadFileScheduling

    absent = [name for name in SEVERAL_RANKS if not (Path(__file__).parent / "integration" / name).is_dir()]
    assert not absent, f"tests/integration has no folder {absent}: name those whose tests run jobs of several ranks"

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "several ranks" if SEVERAL_RANKS.intersection(Path(file).parts) else file

    return Scheduling(config, log)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failures.append(MARK in report.keywords)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Exit with a separate code if only tests that may run a second time have failed."""
    if exitstatus == pytest.ExitCode.TESTS_FAILED and _failures and all(_failures):
        session.exitstatus = ONLY_MARKED_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that may run a second time, after a run of all tests."""
    config = terminalreporter.config
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    terminalreporter.section("may run a second time on a busy machine")
    for one in marked_tests(Path(__file__).parent):
        terminalreporter.line(f"{one.test}: {one.reason}")
