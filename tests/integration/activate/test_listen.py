"""PROBE_LISTEN: the first target starts the host server, which outlives it, unnoticed by the job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import plain, probe
from support.hosts import started_servers
from support.ports import free_address
from support.waiting import until

from .conftest import PATH_ENTRY, WAITS, started, wait_for_target

PROBE = str(Path(sys.executable).parent / "probe")


def wait_for_servers(address: str, num: int) -> list[int]:
    until(
        lambda: len(started_servers(address)) == num,
        says=lambda: f"{started_servers(address)} serve {address}, not {num}",
    )
    return started_servers(address)


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A free address; the server that listens there in the end is stopped."""
    address = free_address() if request.param == "tcp" else f"unix:{tmp_path}/host.sock"
    yield address
    for pid in started_servers(address):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.situation("PROBE_LISTEN, two targets at once", "one host server, beside them; it survives either of them")
def test_two_targets_at_once_have_one_server_that_survives_either(address: str) -> None:
    with (
        started(sys.executable, "-c", WAITS, PROBE_LISTEN=address) as first,
        started(sys.executable, "-c", WAITS, PROBE_LISTEN=address) as second,
    ):
        targets = {int(process.stdout.readline()) for process in (first, second)}
        for pid in targets:
            wait_for_target(pid)
        listed = json.loads(probe(address, "list", "--format", "json").stdout)
        (server,) = wait_for_servers(address, 1)
        status = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
        first.kill()
        second_answers = probe(address, "list", "--format", "json")
        # The job's pipes end with the job, though the server lives: it holds none of them.
        out, err = second.communicate("", timeout=30)

        assert targets <= {row["pid"] for row in listed}
        assert int(status[1]) not in targets  # parent
        assert int(status[3]) not in targets | {os.getsid(0)}  # session
        assert second_answers.returncode == 0
        assert (out, err, second.returncode) == ("", "", 0)
        assert started_servers(address) == [server]


def test_a_job_that_waits_for_all_its_children_never_sees_the_server(address: str) -> None:
    code = """
import os, signal, sys, time
died = []
signal.signal(signal.SIGCHLD, lambda *_: died.append(1))
time.sleep(0.5)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child", len(died), flush=True)
sys.stdin.read()
"""

    with started(sys.executable, "-c", code, PROBE_LISTEN=address) as process:
        said = process.stdout.readline()
        wait_for_servers(address, 1)

    assert said == "no child 0\n"


def test_the_server_heeds_the_tokens_and_limits_that_the_job_was_started_with() -> None:
    address = free_address()

    told = {"PROBE_TOKEN": "t" * 32, "PROBE_READ_TOKEN": "r" * 32, "PROBE_READ_MEMORY": "600"}
    with started(sys.executable, "-c", WAITS, PROBE_LISTEN=address, **told):
        (server,) = wait_for_servers(address, 1)
        stranger = probe("-t", address, "list")
        known = probe("-t", address, "list", PROBE_TOKEN="t" * 32)
        reader = probe("-t", address, "query", "SELECT 1", "--memory", "601", PROBE_TOKEN="r" * 32)
        os.kill(server, signal.SIGKILL)

    assert "at most 600 MB of memory, not 601" in reader.stderr
    assert (stranger.returncode, known.returncode) == (1, 0), known.stderr
    assert "token" in stranger.stderr


@pytest.mark.situation(
    "PROBE_LISTEN, a target environment without a web server", "recorded; probe.errors says it, once"
)
def test_packages_that_a_server_lacks_become_one_row_of_errors(bare_python: Path, tmp_path: Path) -> None:
    address = free_address()
    site = next(bare_python.parents[1].glob("lib/python*")) / "site-packages"
    shutil.rmtree(site, ignore_errors=True)

    with started(str(bare_python), "-c", WAITS, PROBE_LISTEN=address, PYTHONPATH=PATH_ENTRY) as process:
        wait_for_target(process.pid)
        wait_for_servers(address, 0)
        rows: list[dict[str, str]] = []
        deadline = time.monotonic() + 30
        while not rows and time.monotonic() < deadline:
            sql = "SELECT source, message FROM probe.errors"
            answer = probe(str(process.pid), "query", "--format", "json", sql)
            rows = json.loads(answer.stdout or "[]")
        said = [probe(*words).stderr for words in (["list"], [str(process.pid), "ranks"], ["doctor", str(process.pid)])]
        process.stdout.readline()
        out, err = process.communicate("", timeout=30)

    assert [row["source"] for row in rows] == ["host_server"], answer.stderr
    for text in said:
        assert f"pid {process.pid}: no host server for PROBE_LISTEN: No module named" in text
    assert "No module named" in rows[0]["message"]
    assert "pip install probe-training" in rows[0]["message"]
    assert (out, err) == ("", "")


@pytest.mark.situation("PROBE_LISTEN, another program has the port", "recorded; probe.errors and probe list say it")
def test_a_port_that_another_program_has_is_said() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        started(
            sys.executable, "-c", WAITS, PROBE_LISTEN=f"127.0.0.1:{other.getsockname()[1]}", PROBE_FLUSH_INTERVAL="0.05"
        ) as process,
    ):
        process.stdout.readline()
        wait_for_target(process.pid)
        (said,) = Path("/dev/shm").glob(f"probe-{os.getuid()}/{process.pid}-*/server.txt")
        at_once = probe("list").stderr
        os.utime(said, (0, 0))  # half a minute later
        listed = probe("list").stderr
        sql = "SELECT message FROM probe.errors WHERE source = 'host_server'"
        rows = until(lambda: json.loads(probe(str(process.pid), "query", "--format", "json", sql).stdout or "[]"))
        process.communicate("", timeout=30)

    assert f"pid {process.pid}: " not in at_once
    assert f"pid {process.pid}: cannot listen on " in listed
    assert "Address already in use" in rows[0]["message"]


@pytest.mark.situation(
    "PROBE_LISTEN under `probe run`, a target environment without a web server", "the Python of `probe run` serves"
)
def test_probe_run_starts_the_server_with_its_own_python(bare_python: Path, address: str) -> None:
    unset = plain()
    command = [PROBE, "run", str(bare_python), "-c", WAITS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=unset | {"PROBE_LISTEN": address}
    ) as process:
        wait_for_target(process.pid)
        (server,) = wait_for_servers(address, 1)
        done = probe("-t", address, "list", "--format", "json")
        process.communicate(b"", timeout=30)

    assert done.returncode == 0, done.stderr
    assert process.pid in {row["pid"] for row in json.loads(done.stdout)}
    assert os.path.samefile(f"/proc/{server}/exe", sys.executable)


@pytest.mark.parametrize("listen", ["192.0.2.1:8123", "no.such.host.invalid:8123", "8123"])
def test_options_that_probe_serve_refuses_are_refused_in_the_same_words(listen: str, tmp_path: Path) -> None:
    with started(sys.executable, "-c", "print('trained')", PROBE_LISTEN=listen) as process:
        out, err = process.communicate(timeout=30)
    refused = probe("serve", "--listen", listen, "--unix", f"{tmp_path}/host.sock")

    message = refused.stderr.splitlines()[0].removeprefix("probe: ")
    assert message in err
    assert err.count("\n") == 1
    assert (out, process.returncode) == ("trained\n", 0)


@pytest.mark.situation("PROBE_LISTEN, the last target of the host has ended", "the host server ends a minute later")
def test_the_server_ends_by_itself_after_the_last_target(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; print('ready', flush=True); time.sleep(60)")
    script = f"""
mount -t tmpfs none /dev/shm
PROBE=1 PYTHONPATH={PATH_ENTRY} {sys.executable} {tmp_path}/train.py > {tmp_path}/out & TARGET=$!
while ! ls /dev/shm/probe-*/*/target.json 2>/dev/null >&2; do sleep 0.05; done
{PROBE} serve --linger 1 --unix {tmp_path}/host.sock 2>{tmp_path}/said & SERVER=$!
while ! grep -q listening {tmp_path}/said; do sleep 0.05; done
sleep 2.5
kill -0 $SERVER && echo lives
kill -9 $TARGET
wait $SERVER
echo ended $?
"""
    isolated = ["unshare", "-m", "-p", "-f", "--mount-proc"]
    if subprocess.run([*isolated, "true"], capture_output=True).returncode:
        pytest.skip("may not unshare: the other targets of this host would keep the server alive")

    done = subprocess.run([*isolated, "sh", "-c", script], capture_output=True, text=True, timeout=100)

    assert done.stdout.split("\n")[:2] == ["lives", "ended 0"], done.stderr
    assert not (tmp_path / "host.sock").exists()
