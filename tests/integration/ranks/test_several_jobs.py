"""Two jobs at once on one host, one that has ended, and the next one at its address: their ranks are never mixed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.targets import target, torchrun

pytest.importorskip("torch")

from support.commands import Probe, environment
from support.waiting import until

from .conftest import Hosts

NUM_RANKS = 2
#: Six processes load torch at once.
pytestmark = pytest.mark.timeout(300)


class Job:
    """A job that torchrun has started, whose ranks meet at `port`."""

    def __init__(self, folder: Path, port: int, **environ: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.port = folder, port
        meet = ["--master-addr=127.0.0.1", f"--master-port={port}"]
        command = torchrun(NUM_RANKS, target("ranks_job.py", folder), meet=meet)
        with (folder / "output").open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment(OMP_NUM_THREADS="1", **environ)
            )

    def end(self) -> None:
        (self.folder / "stop").touch()
        self.process.wait(60)


class Host:
    """The host server's endpoint, both jobs, and the folder that is their host."""

    def __init__(self, endpoint: str, folder: Path, jobs: list[Job]) -> None:
        self.endpoint, self.folder, self.jobs = endpoint, folder, jobs

    @property
    def identities(self) -> list[dict[str, Any]]:
        """Return what every recorder reports about its rank."""
        return [json.loads(file.read_text()) for file in self.folder.glob("probe-*/*/target.json")]

    def name(self, job: Job) -> str:
        (name,) = {said["job"] for said in self.identities if said["store"].endswith(f":{job.port}")}
        return str(name)

    @property
    def names(self) -> list[str]:
        return [self.name(job) for job in self.jobs]


@pytest.fixture(scope="module")
def host(hosts: Hosts) -> Iterator[Host]:
    endpoint = hosts.serve("many")
    folder = hosts.base / "many"
    with ExitStack() as free:
        ports = [free.enter_context(socket.socket()) for _ in range(NUM_RANKS)]
        for port in ports:
            port.bind(("127.0.0.1", 0))
        numbers = [port.getsockname()[1] for port in ports]
    jobs = [Job(hosts.base / f"job-{at}", port, RANKS_HOST=str(folder)) for at, port in enumerate(numbers)]
    host = Host(endpoint, folder, jobs)

    def all_train() -> bool:
        assert all(job.process.poll() is None for job in jobs)
        return len([*folder.glob("probe-*/*/python.steps.ring")]) == len(jobs) * NUM_RANKS and all(host.names)

    try:
        until(all_train, 240)
        yield host
    finally:
        for job in jobs:
            job.end()


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_job_has_a_name_of_its_own(host: Host, probe: Probe) -> None:
    listed = rows(probe("-t", host.endpoint, "list", "--format", "jsonl"))

    assert len(set(host.names)) == len(host.jobs)
    living = [(row["job"], row["rank"]) for row in listed if row["state"] not in ("no agent", "gone")]
    assert living == [(name, rank) for name in sorted(host.names) for rank in range(NUM_RANKS)]


@pytest.mark.parametrize(
    "words",
    [("compare",), ("ranks",), ("backtrace", "--all-ranks"), ("--all", "eval", "1"), ("--rank", "0", "eval", "1")],
    ids=" ".join,
)
def test_a_question_about_the_ranks_of_one_job_asks_which(words: tuple[str, ...], host: Host, probe: Probe) -> None:
    done = probe("-t", host.endpoint, *words)

    assert (done.returncode, done.stdout) == (2, "")
    assert "2 jobs" in done.stderr
    assert all(f"{name}  ranks 0-1 of 2, step " in done.stderr for name in host.names)
    assert f"{host.endpoint}/{sorted(host.names)[0]}" in done.stderr


def test_a_rank_that_several_jobs_have_is_asked_for_its_job(host: Host, probe: Probe) -> None:
    done = probe(f"{host.endpoint}/1", "query", "SELECT 1")

    assert (done.returncode, done.stdout) == (2, "")
    assert "2 jobs have a rank 1" in done.stderr
    assert all(name in done.stderr for name in host.names)


def test_a_query_shows_all_jobs_by_their_names(host: Host, probe: Probe) -> None:
    sql = "SELECT job, world_size, rank FROM python.steps GROUP BY ALL ORDER BY ALL"

    found = rows(probe(host.endpoint, "query", sql, "--format", "jsonl"))

    assert found == [
        {"job": name, "world_size": NUM_RANKS, "rank": rank} for name in sorted(host.names) for rank in range(NUM_RANKS)
    ]


@pytest.mark.parametrize("how", ["option", "endpoint"])
def test_a_job_is_named_by_its_name_or_how_that_begins(how: str, host: Host, probe: Probe) -> None:
    first, second = host.names
    prefix = next(first[:length] for length in range(1, 7) if not second.startswith(first[:length]))
    words = ("-t", host.endpoint, "--job", prefix) if how == "option" else (f"{host.endpoint}/{first}",)

    listed = rows(probe(*words, "ranks", "--format", "jsonl"))
    compared = probe(*words, "compare", "--format", "json")

    assert [(row["job"], row["rank"]) for row in listed] == [(first, rank) for rank in range(NUM_RANKS)]
    assert [row["endpoint"] for row in listed] == [f"{host.endpoint}/{first}/{rank}" for rank in range(NUM_RANKS)]
    pids = {row["pid"] for row in listed}
    assert {row["pid"] for row in json.loads(compared.stdout)["rows"]} <= pids


def test_job_and_rank_pick_one_target(host: Host, probe: Probe) -> None:
    for job in host.jobs:
        done = probe(f"{host.endpoint}/{host.name(job)}/1", "eval", "os.environ['MASTER_PORT'] + os.environ['RANK']")

        assert done.stdout == f"'{job.port}1'\n", done.stderr


def test_an_unknown_job_and_a_pid_with_a_job_are_refused(host: Host, probe: Probe) -> None:
    nobody = probe("-t", host.endpoint, "--job", "zzzzzz", "ranks")
    pid = probe("-t", "1", "--job", host.names[0], "ranks")

    assert nobody.returncode == 4
    assert all(name in nobody.stderr for name in host.names)
    assert (pid.returncode, pid.stdout) == (2, "")
    assert "leave out --job" in pid.stderr


def test_an_ended_target_is_not_counted_and_is_queried_by_name(host: Host, probe: Probe) -> None:
    ended, _ = host.jobs
    name, other = host.names
    ended.end()

    listed = rows(probe("-t", host.endpoint, "ranks", "--format", "jsonl"))
    left = rows(probe(f"{host.endpoint}/{name}", "query", "SELECT DISTINCT job FROM python.steps", "--format", "jsonl"))

    assert [(row["job"], row["rank"]) for row in listed] == [(other, rank) for rank in range(NUM_RANKS)]
    assert left == [{"job": name}]


@pytest.mark.long
def test_the_next_job_at_an_address_has_another_name_and_one_pid_leads_to_its_unprepared_ranks(
    host: Host, probe: Probe
) -> None:
    before = host.jobs[0]
    before.end()
    job = Job(host.folder.parent / "next", before.port)

    def pids() -> list[int]:
        below = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text()
        return [int(pid) for pid in below.split() if "ranks_job.py" in Path(f"/proc/{pid}/cmdline").read_text()]

    def ranks() -> list[dict[str, Any]]:
        sql = "SELECT job, rank FROM python.backtrace GROUP BY ALL ORDER BY rank"
        named = [word for pid in pids() for word in ("-t", str(pid))]
        return rows(probe(*named, "query", sql, "--format", "jsonl"))

    try:
        until(lambda: len(pids()) == NUM_RANKS)
        first, second = pids()
        alone = probe("--no-inject", "-t", str(first), "--all", "eval", "1")
        done = probe("-t", str(first), "--all", "eval", "__import__('os').environ['RANK']")
        until(lambda: all(row["job"] for row in ranks()))
        (name,) = {row["job"] for row in ranks()}
    finally:
        job.end()

    assert alone.returncode == 4
    assert done.returncode == 0, done.stderr
    assert (
        f"is a rank of a job, by the store 127.0.0.1:{job.port}: attaching to its other ranks on this host"
        in done.stderr
    )
    assert f"pid {second} (rank 1)" in done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("'")] == ["'0'", "'1'"]
    assert name not in host.names


def test_for_ranks_elsewhere_the_command_to_run_there_is_printed(probe: Probe) -> None:
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        env=environment(**told),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        done = probe("-t", str(process.pid), "--all", "eval", "1")
        process.kill()

    assert done.returncode == 3
    assert "rank 1 of 2: no address known" in done.stderr
    assert "on their hosts: probe PID inject, for each of them; probe serve --listen HOST:PORT" in done.stderr
