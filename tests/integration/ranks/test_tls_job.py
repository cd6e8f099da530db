"""A job whose host server uses TLS: one address and the CA certificate lead to all ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.ports import free_port
from support.targets import target, torchrun

pytest.importorskip("torch")

from support.commands import ROOT, Probe, environment, probe_in
from support.hosts import started_servers
from support.waiting import until

pytestmark = (
    pytest.mark.long
)  # test_namespaces.py has TLS between two hosts, tests/integration/server/test_tls.py the rest

trustme = pytest.importorskip("trustme")

NUM_RANKS = 2
PATH_ENTRY = ROOT / "probe_agent" / "activate" / "path"


@dataclass
class Job:
    """The port of its host server, and the command line of its user: with the token, without the CA."""

    port: int
    ca: str
    probe: Probe
    folder: Path

    @property
    def server(self) -> str:
        return f"https://localhost:{self.port}"

    @property
    def endpoint(self) -> str:
        """Return the endpoint with the job's name: other jobs may run on this host."""
        told = self.get("/v1/targets")["targets"]
        names = {one["job"] for one in told if str(self.folder) in one["command"] and one["alive"]} - {""}
        return f"{self.server}/{names.pop()}" if names else self.server

    def get(self, path: str) -> Any:
        token = self.folder / "probe" / "token"
        headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        verify = ssl.create_default_context(cafile=self.ca)
        return httpx.get(self.server + path, headers=headers, verify=verify, trust_env=False, timeout=30).json()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    shown = ca.issue_cert("localhost", "127.0.0.1", socket.gethostname())
    shown.private_key_pem.write_to_path(folder / "key.pem")
    shown.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    port = free_port()
    environ = environment(
        PROBE="1", PROBE_LISTEN=f"0.0.0.0:{port}", PROBE_TLS_CERT=f"{folder}/cert.pem",
        PROBE_TLS_KEY=f"{folder}/key.pem", PYTHONPATH=str(PATH_ENTRY), XDG_CONFIG_HOME=str(folder),
        XDG_STATE_HOME=str(folder), OMP_NUM_THREADS="1",
    )  # fmt: skip
    command = torchrun(NUM_RANKS, target("ranks_job.py", folder))
    output = folder / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environ)
    job = Job(port, str(folder / "ca.pem"), partial(probe_in(folder), XDG_CONFIG_HOME=str(folder)), folder)
    try:

        def all_train() -> bool:
            assert process.poll() is None, output.read_text()
            try:
                rows = rows_of(job, "ranks")
            except (FileNotFoundError, httpx.TransportError):
                return False  # its server is on its way
            return [row["rank"] for row in rows] == [0, 1] and all(int(row["step"] or 0) > 60 for row in rows)

        until(all_train, 90)
        yield job
    finally:
        (folder / "stop").touch()
        process.wait(60)
        for pid in started_servers(f"0.0.0.0:{port}"):
            os.kill(pid, signal.SIGTERM)
    assert process.returncode == 0, output.read_text()
    assert output.read_text() == ""


def rows_of(job: Job, *words: str) -> list[dict[str, object]]:
    done = job.probe("-t", job.endpoint, *words, "--format", "jsonl", PROBE_CA=job.ca)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_one_server_for_both_ranks_prints_its_address(job: Job) -> None:
    told = job.get("/v1/peers")
    rows = rows_of(job, "ranks")

    assert len(started_servers(f"0.0.0.0:{job.port}")) == 1
    whole = job.endpoint if any("/" in str(row["endpoint"])[len(job.server) + 1 :] for row in rows) else job.server
    assert [row["endpoint"] for row in rows] == [f"{whole}/{rank}" for rank in range(NUM_RANKS)]
    pids = {row["pid"] for row in rows}
    own_name = f"https://{socket.gethostname()}:{job.port}"
    peers = [(peer["rank"], peer["address"]) for peer in told["peers"] if peer["pid"] in pids]
    assert sorted(peers) == [(0, own_name), (1, own_name)]


def test_a_query_over_all_ranks_has_the_rows_of_each(job: Job) -> None:
    rows = rows_of(job, "--all", "query", "SELECT rank, count(*) AS n FROM python.steps GROUP BY rank ORDER BY rank")

    assert [row["rank"] for row in rows] == [0, 1]
    assert all(int(str(row["n"])) > 60 for row in rows)


def test_ranks_are_compared(job: Job) -> None:
    done = job.probe("-t", job.endpoint, "compare", "--steps", "20", "--format", "json", PROBE_CA=job.ca)

    found = json.loads(done.stdout)
    assert done.returncode == found["verdict"]["exit_code"], done.stderr
    assert sorted(row["rank"] for row in found["rows"]) == [0, 1]
    assert found["unanswered"] == []


def test_code_runs_on_every_rank(job: Job) -> None:
    done = job.probe("-t", job.endpoint, "--all", "eval", "100 + dist.get_rank()", PROBE_CA=job.ca)

    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.isdigit()] == ["100", "101"]


@pytest.mark.parametrize(
    "words",
    [("ranks",), ("--all", "query", "SELECT 1"), ("compare",), ("--all", "eval", "1")],
    ids=["ranks", "query", "compare", "eval"],
)
def test_without_the_ca_or_https_the_error_names_the_remedy(job: Job, words: tuple[str, ...]) -> None:
    untrusted = job.probe("-t", job.endpoint, *words)
    plain = job.probe("-t", f"localhost:{job.port}", *words, PROBE_CA=job.ca)

    assert (untrusted.returncode, untrusted.stdout) == (4, ""), untrusted.stderr
    assert "PROBE_CA" in untrusted.stderr
    assert (plain.returncode, plain.stdout) == (4, ""), plain.stderr
    assert "https://" in plain.stderr
