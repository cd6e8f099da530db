"""Starting a job with the recorder in it, and the host server's sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from threading import Thread

import pytest
from support.commands import Probe, environment
from support.ports import free_port

from probe_agent.server import location
from probe_cli.main import run


def test_run_sets_the_environment_and_leaves_the_exit_code_alone(probe: Probe) -> None:
    code = "import os, sys; print(os.environ['PROBE'], os.environ['PYTHONPATH'].endswith(':/mine')); sys.exit(7)"

    done = probe("run", "--", sys.executable, "-c", code, PYTHONPATH="/mine")

    assert (done.returncode, done.stdout) == (7, "1 True\n")


def test_run_passes_the_commands_own_options_on(probe: Probe) -> None:
    done = probe("run", "echo", "--help", "-t", "--timeout=3")

    assert (done.returncode, done.stdout) == (0, "--help -t --timeout=3\n")


def test_run_becomes_the_command_so_its_signals_are_its_own() -> None:
    code = "import os; print(os.getpid(), flush=True); os.kill(os.getpid(), 15)"

    with subprocess.Popen(
        ["probe", "run", sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        out, _ = process.communicate(timeout=60)

    assert int(out) == process.pid
    assert process.returncode == -signal.SIGTERM


def test_run_of_a_missing_command_says_so(probe: Probe) -> None:
    done = probe("run", "no-such-command")

    assert done.returncode == 2
    assert "cannot start 'no-such-command'" in done.stderr


@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.0.2.1:8123", "no.such.host.invalid:8123", "8123"])
def test_serve_refuses_addresses_that_are_none_of_this_host(address: str, probe: Probe, tmp_path: Path) -> None:
    done = probe("serve", "--listen", address, "--unix", f"{tmp_path}/host.sock")

    assert done.returncode == 2
    assert "listen" in done.stderr or "TCP port" in done.stderr
    assert not (tmp_path / "host.sock").exists()


@contextmanager
def serving(path: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        ["probe", "serve", "--unix", str(path), *more], stderr=subprocess.PIPE, text=True, env=environment()
    ) as server:
        try:
            assert server.stderr is not None
            for line in server.stderr:
                if f"unix:{path}" in line:
                    break
            yield server
        finally:
            server.terminate()


def test_the_host_server_answers_on_a_socket_for_us_alone(probe: Probe, tmp_path: Path) -> None:
    path = tmp_path / "host.sock"

    with serving(path) as server:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        done = probe(f"unix:{path}", "list", "--format", "json")
        server.terminate()
        code = server.wait(60)

    assert mode == 0o600
    assert done.returncode == 0, done.stderr
    assert code == 0
    assert not path.exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_the_host_server_answers_on_loopback_when_asked_to(host: str, probe: Probe, tmp_path: Path) -> None:
    endpoint = f"{host}:{free_port(host.strip('[]'))}"

    with serving(tmp_path / "host.sock", "--listen", endpoint):
        done = probe(endpoint, "list", "--format", "json")

    assert done.returncode == 0, done.stderr


def test_a_second_server_does_not_take_the_socket_of_the_first(probe: Probe, tmp_path: Path) -> None:
    path = tmp_path / "host.sock"

    with serving(path):
        done = probe("serve", "--unix", str(path))

    assert done.returncode == 2
    assert "already" in done.stderr


def test_the_socket_of_a_killed_server_does_not_block_the_next(probe: Probe, tmp_path: Path) -> None:
    path = tmp_path / "host.sock"
    with serving(path) as killed:
        killed.kill()
        killed.wait(60)
    assert path.exists()

    with serving(path):
        done = probe(f"unix:{path}", "list", "--format", "json")

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("is_accepted", [False, True], ids=["waiting", "accepted"])
def test_a_request_that_an_ending_server_has_not_read_is_repeated(
    is_accepted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("PROBE_RUNTIME_DIR", str(tmp_path))
    path = Path(location.host_socket(str(tmp_path)))
    location.write_record(str(path), location.Record(os.getpid()))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def end() -> None:
        for _ in range(2):
            listener.accept()[0].close()  # the command has looked whether anybody listens
        select([listener], [], [], 20)
        if is_accepted:
            connection, _ = listener.accept()
            select([connection], [], [], 20)
            path.unlink()
            connection.close()
        else:
            path.unlink()
        listener.close()

    server = Thread(target=end)
    server.start()
    code = run(["list", "--format", "json"])
    server.join()
    run(["stop"])

    said = capfd.readouterr()
    assert code == 0, said.err
    assert isinstance(json.loads(said.out), list)
