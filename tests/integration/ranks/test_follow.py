"""From one host server to the others, by what the ranks of a job published, right or wrong."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from support.commands import Probe, environment
from support.ports import free_address
from support.waiting import until

from probe_agent.recorder.job.address import listening

from .conftest import Hosts

HERE = os.uname().nodename


class Told:
    """A job whose first rank is on its own host; the test decides what its recorder knows about the others."""

    def __init__(self, hosts: Hosts, name: str, world_size: int) -> None:
        self.endpoint = hosts.serve(name)
        self.process = hosts.target(name, 0, world_size)
        (self.folder,) = Path(hosts.base, name, f"probe-{os.getuid()}").iterdir()
        self.entry = self.of(self.folder, 0, self.endpoint)

    @staticmethod
    def of(folder: Path, rank: int, address: str | None) -> dict[str, object]:
        """Return what the recorder with this folder publishes."""
        identity = json.loads((folder / "target.json").read_text())
        said = {"rank": rank, "host": identity["host"], "pid": identity["host_pid"], "note": ""}
        return {**said, "attached_at": identity["attached_at"], "address": address}

    def knows(self, *others: dict[str, object]) -> None:
        peers = [self.entry, *others]
        (self.folder / "peers.json").write_text(json.dumps({"world_size": len(peers), "peers": peers}))


def peer(rank: int, host: str = "node9", **more: object) -> dict[str, object]:
    entry = {"rank": rank, "host": host, "pid": 7, "attached_at": 7.0, "address": None, "note": ""}
    return {**entry, **more}


@pytest.fixture(scope="module")
def two(hosts: Hosts) -> Told:
    return Told(hosts, "two", 2)


def ranks(done: subprocess.CompletedProcess[str]) -> list[int]:
    return [json.loads(line)["rank"] for line in done.stdout.splitlines()]


def test_a_rank_on_another_host_is_found(hosts: Hosts, two: Told, probe: Probe) -> None:
    other = hosts.serve("other", "127.0.0.7")
    process = hosts.target("other", 1, 2)
    (folder,) = Path(hosts.base, "other", f"probe-{os.getuid()}").iterdir()
    two.knows(Told.of(folder, 1, other))

    for endpoint in (two.endpoint, f"{two.endpoint}/0"):
        done = probe("-t", endpoint, "--all", "eval", "import os; os.getpid()")

        pids = [int(line) for line in done.stdout.splitlines() if line.isdigit()]
        assert (done.returncode, pids) == (0, [two.process.pid, process.pid]), done.stderr


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (peer(1, note="no host server listens on TCP there"), "no host server listens on TCP there"),
        (peer(1, address="127.0.0.1:8080"), "where only node9 reaches it"),
        (peer(1, address="[::1]:8080"), "PROBE_LISTEN=node9:8080"),
        (peer(1, address="nonsense"), "has published an invalid address"),
        (peer(1, address="4121"), "has published an invalid address"),
        (peer(1, address="127.0.0.1:1", host=HERE), "refused the connection"),
    ],
)
def test_a_rank_that_cannot_be_reached_is_named_with_the_reason(
    entry: dict[str, object], said: str, two: Told, probe: Probe
) -> None:
    two.knows(entry)

    done = probe("-t", two.endpoint, "ranks", "--format", "jsonl")

    assert (done.returncode, ranks(done)) == (3, [0]), done.stderr
    assert said in done.stderr
    assert "1 of 2 answered" in done.stderr


def test_a_rank_that_was_detached_is_not_looked_for_behind_the_same_server(two: Told, probe: Probe) -> None:
    two.knows(peer(1, host=HERE, address=two.endpoint))

    done = probe("-t", two.endpoint, "--all", "eval", "1")

    assert done.returncode == 3
    assert "rank 1" in done.stderr
    assert "has been detached" in done.stderr
    assert done.stdout.splitlines()[-1] == "1"


def test_unknown_ranks_are_counted_with_the_reason(hosts: Hosts, probe: Probe) -> None:
    told = Told(hosts, "silent", 9)

    done = probe("-t", told.endpoint, "--all", "eval", "1")

    assert done.returncode == 3
    assert "ranks 1-8 of 9: no address known" in done.stderr
    assert "torch.distributed has no process group in this process" in done.stderr


def test_require_all_shows_nothing_when_some_are_missing(two: Told, probe: Probe) -> None:
    two.knows(peer(1))

    for command in (["eval", "1"], ["ranks"], ["query", "SELECT 1"], ["tables"]):
        done = probe("--require-all", "-t", two.endpoint, "--all", *command)

        assert (done.returncode, done.stdout) == (3, ""), command
        assert "--require-all" in done.stderr


def test_a_dead_rank_is_reported_as_ended(hosts: Hosts, two: Told, probe: Probe) -> None:
    other = hosts.serve("ended", "127.0.0.8")
    process = hosts.target("ended", 1, 2)
    (folder,) = Path(hosts.base, "ended", f"probe-{os.getuid()}").iterdir()
    entry = Told.of(folder, 1, other)
    two.knows(entry)
    (folder / "peers.json").write_text(json.dumps({"world_size": 2, "peers": [two.entry, entry]}))
    process.kill()
    process.wait(60)

    done = probe("-t", two.endpoint, "-t", other, "--all", "eval", "1")

    assert done.returncode == 3
    assert f"rank 1 on {HERE}, pid {process.pid} has ended" in done.stderr


def test_without_all_or_rank_an_eval_of_several_names_both(hosts: Hosts, probe: Probe) -> None:
    both = Told(hosts, "both", 2)
    hosts.target("both", 1, 2)

    done = probe(both.endpoint, "eval", "1")

    assert done.returncode == 2
    assert "--all or --rank 0,4-7" in done.stderr
    assert "(rank 0), pid" in done.stderr


@pytest.mark.parametrize("ranks", ["x", "", "3-1", "0,,1", "1-"])
def test_ranks_that_are_none_are_refused(ranks: str, probe: Probe) -> None:
    done = probe("-t", "127.0.0.1:1", "--rank", ranks, "tables")

    assert done.returncode == 2
    assert "ranks and ranges" in done.stderr


def test_a_host_server_says_on_what_it_listens_as_long_as_it_serves(tmp_path: Path, hosts: Hosts) -> None:
    address = free_address()
    command = ["probe", "serve", "--listen", address, "--unix", f"{tmp_path}/host.sock"]

    def said() -> list[str]:
        folder = Path(f"/dev/shm/probe-{os.getuid()}")
        return listening(str(folder)) if folder.exists() else []

    with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as server:
        until(lambda: address in said() or server.poll() is not None)
        while_it_serves = said()
        server.terminate()

    assert address in while_it_serves
    assert address not in said()
