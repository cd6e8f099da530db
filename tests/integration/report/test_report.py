"""One zip of a hung job of two ranks: it opens as the job did, without a secret and without the job."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.commands import environment, probe
from support.forked import Forked
from support.targets import target
from support.waiting import until

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SECRETS = ("--api-key", "hunter2-of-argv", "--data", "https://ada:hunter2-of-the-url@host/data")


@dataclass(frozen=True)
class Made:
    """A report, the PIDs of its ranks, and what `probe report` has said."""

    path: str
    pids: tuple[str, ...]
    said: str
    living: str

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        return probe(self.path, *words)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The job has ended when the report is opened."""
    folder = tmp_path_factory.mktemp("report")
    ranks = [
        Forked(
            [*target("hung_job.py", rank, 2, folder / "store", *SECRETS)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(SERVICE_TOKEN="hunter2-of-the-environment", NCCL_SECRET_KEY="hunter2-of-nccl"),
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "hangs\n"
        pids = tuple(str(process.pid) for process in ranks)
        named = [word for pid in pids for word in ("-t", pid)]
        path = str(folder / "r.zip")
        done = probe(*named, "report", "-o", path)
        assert done.returncode == 0, done.stderr
        living = probe(*named, "query", "SELECT rank, max(seq) FROM torch.flight_recorder GROUP BY rank ORDER BY rank")
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    until(lambda: not Path(f"/proc/{pids[0]}").exists())
    return Made(path, pids, done.stderr, living.stdout)


def test_a_query_gives_the_rows_of_all_ranks(made: Made) -> None:
    answer = made.ask("query", "SELECT rank, max(seq) FROM torch.flight_recorder GROUP BY rank ORDER BY rank")
    wrong = made.ask("query", "SELECT nothing FROM python.stacks")

    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == made.living
    assert len(answer.stdout.splitlines()) == 4
    assert wrong.returncode == 1
    assert 'no column "nothing"' in wrong.stderr


def test_stacks_are_those_of_the_moment(made: Made) -> None:
    tree = made.ask("backtrace", "--all-ranks")
    one = probe("-t", made.path, "--rank", "1", "backtrace", "--json")
    several = made.ask("backtrace")

    assert "rank 0" in tree.stdout
    assert "rank 1" in tree.stdout
    assert json.loads(one.stdout)["rank"] == 1
    assert any(frame["source"] == "time.sleep(600)" for frame in json.loads(one.stdout)["threads"][0]["frames"])
    assert several.returncode == 2
    assert "--all-ranks" in several.stderr


def test_hang_says_what_it_said_and_other_commands_say_why_not(made: Made) -> None:
    said = made.ask("hang")
    as_json = made.ask("hang", "--format", "envelope")
    refused = made.ask("eval", "1")

    with zipfile.ZipFile(made.path) as archive:
        assert said.stdout.splitlines() == archive.read("findings/hang.txt").decode().splitlines()
        assert said.returncode == json.loads(archive.read("report.json"))["findings"]["hang"]
    told = json.loads(as_json.stdout)
    assert [row["rank"] for row in told["rows"]] == [0, 1]
    assert told["verdict"]["sentence"] in said.stdout, "both are of one judgement"
    assert refused.returncode == 2
    assert "eval needs the living job" in refused.stderr


def test_no_secret_is_in_it(made: Made) -> None:
    with zipfile.ZipFile(made.path) as archive:
        for name in archive.namelist():
            if name.endswith(".json"):
                json.loads(archive.read(name))
        holding = [name for name in archive.namelist() if b"hunter2" in archive.read(name)]
        info = json.loads(archive.read(f"ranks/0-{made.pids[0]}/info.json"))
        readme = archive.read("README.txt").decode()

    assert holding == []
    assert info["command"][-4:] == ["--api-key", "***", "--data", "https://***@host/data"]
    assert f"rank 1 of 2, pid {made.pids[1]}" in readme
    assert "probe.audit" in readme
    assert "2 targets" in made.said
    assert Path(made.path).stat().st_mode & 0o777 == 0o600


def test_a_report_of_an_ended_target_has_what_it_left(tmp_path: Path) -> None:
    code = "import sys\nprint('ready', flush=True)\nsys.stdin.read()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        assert probe(str(job.pid), "inject").returncode == 0
        job.kill()

    done = probe(str(job.pid), "report", "-o", str(tmp_path / "r.zip"))
    rows = probe(str(tmp_path / "r.zip"), "query", "--format", "json", "SELECT count(*) AS n FROM probe.errors")

    assert done.returncode == 0, done.stderr
    assert json.loads(rows.stdout) == [{"n": 0}]
    with zipfile.ZipFile(tmp_path / "r.zip") as archive:
        assert "ended" in archive.read("README.txt").decode()
        assert any("stacks" in said for said in json.loads(archive.read("report.json"))["left_out"])
