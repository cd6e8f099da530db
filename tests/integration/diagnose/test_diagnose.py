"""`probe … diagnose` of jobs of the gallery: with a fault, and without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.commands import ROOT, Probe, environment, probe, probe_in
from support.forked import Forked
from support.waiting import until

pytestmark = pytest.mark.torch
STEPS = "SELECT count(*) > 60 AS enough FROM python.steps"
#: A step that has begun before anybody asks, and does not end.
LONG_STEP = """
import torch
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(8, 64)).square().mean().backward()
optimizer.step()
print("works", flush=True)
while True:
    model(torch.randn(512, 64))
"""
#: A learner, and an actor that it has started.
LEARNER = """
import multiprocessing, time, torch
model = torch.nn.Linear(64, 1)
def act():
    while True:
        time.sleep(0.01)
        model(torch.randn(8, 64))
actor = multiprocessing.get_context("fork").Process(target=act, daemon=True)
actor.start()
print(actor.pid, flush=True)
act()
"""

#: A script that trains, and then waits for a process that it has forked.
WAITS_FOR_CHECK = """
import multiprocessing, time, torch
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
print("works", flush=True)
for step in range(500):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
check = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
check.start()
print(check.pid, flush=True)
check.join()
"""


@contextmanager
def training(name: str, *words: str) -> Iterator[str]:
    """A program of tests/faults; its PID."""
    command = ["-m", "faults", name, *words]
    environ = environment(PYTHONPATH=str(ROOT / "tests"), OMP_NUM_THREADS="1")
    with Forked(command, env=environ, stdout=subprocess.DEVNULL) as process:
        try:
            yield str(process.pid)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def probe_here(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return probe_in(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def jobs(probe_here: Probe) -> Iterator[dict[str, str]]:
    """The PIDs of a job with a fault and of its twin, with enough steps to judge."""
    with ExitStack() as stack:
        name = "data-set-on-the-training-thread"
        pids = {
            words or "faulty": stack.enter_context(training(name, *filter(None, [words]))) for words in ("", "healthy")
        }
        for pid in pids.values():
            until(lambda pid=pid: "true" in probe_here(pid, "query", "--format", "json", STEPS).stdout, 90.0)
        yield pids


def told(asked: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(asked.stdout)
    return found


def test_the_cause_is_the_headline_and_the_symptom_is_below_it(probe_here: Probe, jobs: dict[str, str]) -> None:
    text = probe_here(jobs["faulty"], "diagnose")
    asked = probe_here(jobs["faulty"], "diagnose", "--format", "json")

    (headline, *_) = told(asked)["findings"]
    assert (text.returncode, asked.returncode) == (1, 1), text.stderr
    assert headline["rule"] == "loader-without-workers"
    assert [below["rule"] for below in headline["explains"]] == ["data-bound"]
    assert headline["cost_s"] > 0.01
    assert "try first: DataLoader(..., num_workers=4" in text.stdout
    assert "explains: the step waits for data" in text.stdout


def test_the_twin_has_no_finding_of_data(probe_here: Probe, jobs: dict[str, str]) -> None:
    rules = ["--rule", "loader-without-workers", "--rule", "data-bound", "--set", "data-bound.share=0.5"]

    asked = probe_here(jobs["healthy"], "diagnose", *rules, "--set", "loader-without-workers.share=0.5")

    assert asked.returncode == 0, asked.stdout + asked.stderr
    assert asked.stdout.startswith("nothing found: 2 rules judged what rank 0 recorded")


def test_what_it_asks_changes_nothing_in_the_target(probe_here: Probe, jobs: dict[str, str]) -> None:
    pid = jobs["healthy"]
    before = {path.name for path in Path(f"/proc/{pid}/task").iterdir()}

    probe_here(pid, "diagnose")

    assert {path.name for path in Path(f"/proc/{pid}/task").iterdir()} <= before


def test_rules_that_need_the_recorder_are_judged_while_no_step_ends(probe_here: Probe) -> None:
    with Forked(["-c", LONG_STEP], env=environment(OMP_NUM_THREADS="1"), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"works\n"
            asked = probe_here(str(process.pid), "diagnose", "--format", "json")
        finally:
            process.kill()

    assert "did not answer" not in str(told(asked)["unjudged"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--rule", "data-bond"), "data-bound"),
        (("--explain", "data-bond"), "data-bound"),
        (("--set", "data-bound.shore=1"), "it has share, seconds, pressure, steps"),
        (("--set", "data-bound.share=much"), "data-bound.share=0.2"),
        (("--set", "data-bound"), "has no threshold"),
    ],
)
def test_a_name_that_does_not_exist_leads_to_the_one_that_does(words: tuple[str, ...], says: str) -> None:
    asked = probe("diagnose", *words)

    assert asked.returncode == 2
    assert says in asked.stderr
    assert asked.stdout == ""


def test_pages_and_the_list_need_no_target() -> None:
    listed, page = probe("diagnose", "--list"), probe("diagnose", "--explain", "data-bound")

    assert (listed.returncode, page.returncode) == (0, 0)
    assert "data-bound" in listed.stdout
    assert "--set data-bound.share=NUMBER" in page.stdout
    assert "FROM python.steps" in page.stdout


def test_status_is_what_a_bare_endpoint_shows(probe_here: Probe, jobs: dict[str, str]) -> None:
    bare, asked = probe_here(jobs["faulty"]), probe_here(jobs["faulty"], "status", "--format", "json")

    lines = dict(line.split(maxsplit=1) for line in bare.stdout.splitlines())
    assert (bare.returncode, asked.returncode) == (0, 0), bare.stderr
    assert "training" in lines["step"]
    assert "data_wait" in lines["time"]
    assert lines["finding"].startswith("the data loader has no worker processes")
    assert told(asked)["rows"][0]["step"] > 60
    assert told(asked)["findings"][0]["rule"] == "loader-without-workers"


class Hook(BaseHTTPRequestHandler):
    """Keeps the bodies that it was sent."""

    bodies: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    """Where a server listens that keeps what it is sent."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/findings"
        server.shutdown()


def test_a_watch_prints_each_finding_once_and_tells_a_command_and_an_address(
    jobs: dict[str, str], tmp_path: Path, address: str
) -> None:
    words = ["diagnose", "--watch", "1", "--rule", "data-bound", "--on-finding", f"cat >> {tmp_path}/found; echo"]
    with subprocess.Popen(
        ["probe", jobs["faulty"], *words, "--webhook", address],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as watching:
        found = tmp_path / "found"
        until(lambda: found.exists() and found.read_text().endswith("}") and bool(Hook.bodies), process=watching)
        watching.send_signal(signal.SIGINT)
        out, _ = watching.communicate(timeout=30)

    assert watching.returncode == 1
    assert out.count("data-bound: certain") == 1
    assert json.loads(found.read_text())["rule"] == "data-bound"
    assert [json.loads(body)["rule"] for body in Hook.bodies] == ["data-bound"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--webhook", "http://h/"), "--webhook needs --watch"),
        (("--watch", "9", "--webhook", "h:1"), "use http://HOST"),
    ],
)
def test_an_address_for_findings_has_to_be_one(words: tuple[str, ...], says: str) -> None:
    asked = probe("1", "diagnose", *words)

    assert asked.returncode == 2
    assert says in asked.stderr


def test_the_list_before_a_long_run_names_the_loader_and_counts_nothing_unknown_as_ok(
    probe_here: Probe, jobs: dict[str, str]
) -> None:
    faulty, listed = probe_here(jobs["faulty"], "check", "--format", "json"), probe("check", "--list")
    seeds = probe_here(jobs["healthy"], "check", "--check", "seeds", "--check", "disk")
    unknown = probe("check", "--check", "seed")

    levels: dict[str, set[str]] = {}
    for line in told(faulty)["rows"]:
        levels.setdefault(line["check"], set()).add(line["level"])
    assert (faulty.returncode, listed.returncode, unknown.returncode) == (1, 0, 2), faulty.stderr
    assert "bad" in levels["data-loader"]
    assert "ok" not in levels["data-loader"]
    assert levels["ranks"] == levels["communication"] == {"-"}
    assert levels["versions"] == {"ok"}
    assert set(levels) == {line.split()[0] for line in listed.stdout.splitlines()[2:]}
    assert seeds.stdout.splitlines()[2].split()[1] == "seeds"
    assert "did you mean seeds" in unknown.stderr


def test_what_the_target_has_started_and_is_not_asked_is_named(probe_here: Probe) -> None:
    with subprocess.Popen([sys.executable, "-c", LEARNER], stdout=subprocess.PIPE, text=True) as learner:
        try:
            assert learner.stdout is not None
            actor = learner.stdout.readline().strip()
            done = probe_here(str(learner.pid), "diagnose", "--rule", "loss-not-finite")
            both = probe_here("-t", str(learner.pid), "-t", actor, "diagnose", "--rule", "loss-not-finite")
        finally:
            os.kill(int(actor), signal.SIGKILL)  # it would go on without the learner
            learner.terminate()

    says = f"pid {learner.pid} has started pid {actor}, which uses torch too and is not asked: probe {actor} …"
    assert says in done.stderr
    assert "is not asked" not in both.stderr
    assert f"what rank 0 and pid {actor} recorded" in both.stdout


def test_a_target_that_waits_for_a_process_it_has_forked_is_asked_itself(probe_here: Probe) -> None:
    """One that trains is no launcher, which would be replaced by what it has started."""
    with subprocess.Popen([sys.executable, "-c", WAITS_FOR_CHECK], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "works\n"
            assert probe_here(str(process.pid), "tables").returncode == 0
            check = int(process.stdout.readline())
            steps = "SELECT pid, count(*) > 9 AS trained FROM python.steps GROUP BY pid"
            done = probe_here(str(process.pid), "query", steps, "--format", "json")
            os.kill(check, signal.SIGKILL)
        finally:
            process.kill()

    assert "launcher" not in done.stderr
    assert json.loads(done.stdout) == [{"pid": process.pid, "trained": True}]
