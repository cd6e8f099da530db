"""Fixtures of the tests on a GPU: the device, the jobs, and the table of what was measured.

A check that fails does not end its test, and a test that fails does not end the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from . import findings
from .findings import Findings, render
from .jobs import BARE, Job
from .machine import VARIABLE, Machine, find

Start = Callable[..., Job]
CPU_TIMEOUT_S = 600
#: Files in the order in which a run that is cut short is worth most.
ORDER = ("times", "harmless", "memory", "kinds", "diagnose", "nvml", "ranks", "hang", "cost")
_lines: list[findings.Line] = []
_about: list[str] = []
_findings = pytest.StashKey[Findings]()
_jobs = pytest.StashKey[list[Job]]()


def name_of(item: pytest.Item) -> str:
    """Return a short name of a test: its file, the begin of its name, its parameters."""
    name, _, parameters = item.name.removeprefix("test_").partition("[")
    return f"{item.path.stem.removeprefix('test_')}: {name[:32]}{parameters and ' [' + parameters}"


@pytest.fixture(scope="session")
def found_machine() -> Machine | str:
    found = find()
    if isinstance(found, Machine):
        _about.append(found.about)
        findings.write_line([found.about])
        findings.write_line(["test", "what", "measured", "against", "verdict"])
        findings.write_line(["---"] * 5)
    return found


@pytest.fixture
def machine(found_machine: Machine | str) -> Machine:
    if isinstance(found_machine, str):
        pytest.skip(found_machine)
    return found_machine


@pytest.fixture
def gpu(machine: Machine) -> Machine:
    """The machine, for tests that make no sense without a GPU."""
    if not machine.has_gpu:
        pytest.skip("only a GPU can show this")
    return machine


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Findings:
    noted = request.node.stash[_findings] = Findings(name_of(request.node), _lines)
    return noted


@pytest.fixture
def start(request: pytest.FixtureRequest, machine: Machine, tmp_path: Path) -> Iterator[Start]:
    """Start jobs on the device; they end with the test."""
    jobs = request.node.stash[_jobs] = []

    def begin(program: str, *arguments: object, way: str = BARE, **options: Any) -> Job:
        folder = tmp_path / f"{len(jobs)}-{program}-{way}"
        jobs.append(Job(folder, program, *arguments, device=machine.kind, way=way, **options))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests of this folder; those of other folders keep their places. A CPU gets more time."""
    here = Path(__file__).parent
    places = [at for at, item in enumerate(items) if item.path.parent == here]
    ours = sorted((items[at] for at in places), key=lambda item: ORDER.index(item.path.stem.removeprefix("test_")))
    for at, item in zip(places, ours, strict=True):
        items[at] = item
        if os.environ.get(VARIABLE) == "cpu":
            item.add_marker(pytest.mark.timeout(CPU_TIMEOUT_S), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Fail a test whose checks did not all hold."""
    outcome = yield
    noted = pyfuncitem.stash.get(_findings, None)
    if noted is not None and noted.failures:
        pytest.fail("\n".join(noted.failures), pytrace=False)
    return outcome


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure what the jobs wrote; note tests that did not run, or broke off."""
    outcome = yield
    name = name_of(item)
    if outcome.skipped and call.excinfo is not None:
        if _about:  # otherwise all are skipped for the same reason, which pytest prints
            _add((name, "-", "-", str(call.excinfo.value), "skipped"))
    elif outcome.failed:
        for job in item.stash.get(_jobs, []):
            outcome.sections.append((f"job {job.program}", job.diagnostics()))
        noted = item.stash.get(_findings, None)
        if call.excinfo is not None and not (noted is not None and noted.failures):
            _add((name, f"broke off in {call.when}", " ".join(str(call.excinfo.value).split())[:240], "-", "FAILS"))
    return outcome


def _add(line: findings.Line) -> None:
    _lines.append(line)
    findings.write_line(line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _lines:
        terminalreporter.section("measured, against what")
        for text in [*_about, *render(_lines)]:
            terminalreporter.line(text)
