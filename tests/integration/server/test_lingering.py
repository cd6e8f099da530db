"""The host server that a command starts: one a user, found by the next command, gone when nobody needs it."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import pytest
from support.commands import plain, probe
from support.open_files import open_files
from support.waiting import until

from .served import PROBE, serving, training

ISOLATED = ["unshare", "-m", "-p", "-f", "--mount-proc", "sh", "-c"]


def is_isolated_possible() -> bool:
    return subprocess.run([*ISOLATED[:-2], "true"], capture_output=True).returncode == 0


@pytest.fixture
def runtime() -> Iterator[str]:
    """A folder in which no host server is yet; the one that comes is ended."""
    with TemporaryDirectory(prefix="probe-") as folder:
        yield folder
        probe("stop", PROBE_RUNTIME_DIR=folder)


def servers(runtime: str) -> list[int]:
    """The host servers that commands have started in a folder, whether they have its socket or not any more."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
            is_zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue  # it has gone
        if "--socket" in words and any(word.startswith(runtime + "/") for word in words) and not is_zombie:
            found.append(int(folder.name))
    return found


def sockets(runtime: str) -> list[Path]:
    return list(Path(runtime).glob("host*.sock"))


@contextmanager
def asking(*arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen([PROBE, *arguments], env=plain() | environ, stdout=pipe, stderr=pipe, text=True) as process:
        yield process
        process.kill()


def test_two_commands_that_start_at_once_get_one_server_for_this_user_alone(runtime: str) -> None:
    with asking("list", PROBE_RUNTIME_DIR=runtime) as one, asking("list", PROBE_RUNTIME_DIR=runtime) as other:
        said = [process.communicate(timeout=60) for process in (one, other)]

    assert [one.returncode, other.returncode] == [0, 0], said
    (server,) = servers(runtime)
    (path,) = sockets(runtime)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert all(f"host server: pid {server}" in err for _, err in said)


def test_nothing_of_a_command_stays_open_in_the_server_that_it_has_started(runtime: str) -> None:
    ours, terminal = pty.openpty()
    with asking("list", PROBE_RUNTIME_DIR=runtime) as process:
        out, _ = process.communicate(timeout=60)  # to the end of its pipes, which a server would have kept open
    probe("stop", PROBE_RUNTIME_DIR=runtime)
    on_a_terminal = subprocess.run(
        [PROBE, "list"],
        env=plain() | {"PROBE_RUNTIME_DIR": runtime},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        timeout=60,
    )
    os.close(terminal)
    (server,) = servers(runtime)
    fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    files = list(open_files(server))

    assert "pid" in out
    assert on_a_terminal.returncode == 0
    group, session, controlling_terminal = map(int, fields[2:5])
    assert (group, session, controlling_terminal) == (server, server, 0)
    assert not [name for name in files if name.startswith(("/dev/pts", "/dev/tty"))]
    assert os.readlink(f"/proc/{server}/cwd") == "/"
    os.close(ours)


@pytest.fixture(scope="module")
def another_version(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command line of a Probe that is installed elsewhere, with another version."""
    root = tmp_path_factory.mktemp("other")
    for package in ("probe_agent", "probe_cli"):
        source = Path(__file__).parents[3] / package
        shutil.copytree(source, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    version = root / "probe_agent" / "recorder" / "__init__.py"
    version.write_text(version.read_text().replace('__version__ = "', '__version__ = "9.'))
    start = f"import sys; sys.path.insert(0, {str(root)!r}); from probe_cli.main import main; main()"
    return [sys.executable, "-c", start]


def test_a_server_of_another_version_is_replaced_and_ends_its_question_first(
    runtime: str, another_version: list[str]
) -> None:
    environment = plain() | {"PROBE_RUNTIME_DIR": runtime}
    waits = f"while not os.path.exists('{runtime}/go'): time.sleep(0.01)"
    code = f"import os, time\nprint('began', flush=True)\n{waits}\nprint('whole')"
    with training() as pid:
        question = [*another_version, str(pid), "eval", code]
        with subprocess.Popen(question, env=environment, stdout=subprocess.PIPE, text=True) as asked:
            assert asked.stdout is not None
            assert asked.stdout.readline() == "began\n"
            (old,) = servers(runtime)
            listed = probe("list", PROBE_RUNTIME_DIR=runtime)
            both = servers(runtime)
            Path(runtime, "go").touch()
            rest, _ = asked.communicate(timeout=60)

    assert listed.returncode == 0, listed.stderr
    assert len(both) == 2
    assert old in both
    assert (rest, asked.returncode) == ("whole\n", 0)
    until(lambda: old not in servers(runtime))
    assert len(sockets(runtime)) == 1


def test_a_server_that_was_killed_is_started_anew(runtime: str) -> None:
    probe("list", PROBE_RUNTIME_DIR=runtime)
    (killed,) = servers(runtime)
    os.kill(killed, signal.SIGKILL)
    until(lambda: not servers(runtime))

    done = probe("list", PROBE_RUNTIME_DIR=runtime)

    assert done.returncode == 0, done.stderr
    assert servers(runtime) != [killed]


def test_probe_serve_takes_the_place_and_is_asked_from_then_on(runtime: str) -> None:
    probe("list", PROBE_RUNTIME_DIR=runtime)
    (lingering,) = servers(runtime)
    with asking("serve", PROBE_RUNTIME_DIR=runtime) as serving:
        assert serving.stderr is not None
        until(lambda: "listening on unix:" in serving.stderr.readline(), process=serving)
        until(lambda: not servers(runtime))
        done = probe("list", PROBE_RUNTIME_DIR=runtime)
        second = probe("serve", PROBE_RUNTIME_DIR=runtime)
        stopped = probe("stop", PROBE_RUNTIME_DIR=runtime)
        code = serving.wait(20)

    assert f"host server: pid {serving.pid}" in done.stderr
    assert second.returncode == 2
    assert "already" in second.stderr
    assert f"ended the host server (pid {serving.pid}" in stopped.stderr
    assert code == 0
    assert lingering != serving.pid
    assert sockets(runtime) == []


def test_it_ends_with_the_command_where_it_is_not_to_linger(runtime: str) -> None:
    done = probe("list", PROBE_RUNTIME_DIR=runtime, PROBE_LINGER="0")

    assert done.returncode == 0, done.stderr
    until(lambda: not servers(runtime))
    assert sockets(runtime) == []


def test_it_ends_once_it_has_been_idle_for_long_enough(runtime: str) -> None:
    done = probe("list", PROBE_RUNTIME_DIR=runtime, PROBE_LINGER="0.5")
    until(lambda: not servers(runtime))

    assert done.returncode == 0, done.stderr
    assert sockets(runtime) == []


def test_doctor_and_stop_say_whether_a_server_runs(runtime: str) -> None:
    doctor = probe("doctor", str(os.getpid()), PROBE_RUNTIME_DIR=runtime)
    (server,) = servers(runtime)
    stopped = probe("stop", PROBE_RUNTIME_DIR=runtime)
    again = probe("stop", PROBE_RUNTIME_DIR=runtime)
    of_a_target = probe("123", "stop", PROBE_RUNTIME_DIR=runtime)

    assert f"host server: pid {server}, up " in doctor.stderr
    assert f"ended the host server (pid {server}, up " in stopped.stderr
    assert (stopped.returncode, again.returncode) == (0, 0)
    assert "no host server runs" in again.stderr
    until(lambda: not servers(runtime))
    assert of_a_target.returncode == 2
    assert "probe PID detach" in of_a_target.stderr


def test_a_signal_ends_it_in_time_whatever_it_answers(runtime: str) -> None:
    with (
        training() as pid,
        asking(str(pid), "eval", "print('began', flush=True)\nwhile True: pass", PROBE_RUNTIME_DIR=runtime) as asked,
    ):
        assert asked.stdout is not None
        assert asked.stdout.readline() == "began\n"
        (server,) = servers(runtime)
        told = monotonic()
        os.kill(server, signal.SIGTERM)
        until(lambda: not servers(runtime), timeout_s=10.0)
        took_s = monotonic() - told
        _, said = asked.communicate(timeout=30)

    assert took_s < 3.0  # 2 s, and what a busy machine adds
    assert sockets(runtime) == []
    assert asked.returncode == 4
    assert "host server ended" in said


def test_a_folder_that_cannot_be_used_is_said_with_the_reason(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)

    impossible = probe("list", PROBE_RUNTIME_DIR="/proc/nowhere")
    not_private = probe("list", PROBE_RUNTIME_DIR=str(open_to_all))

    assert (impossible.returncode, not_private.returncode) == (4, 4)
    assert "no folder for the host server's socket: /proc/nowhere: No such file or directory" in impossible.stderr
    assert f"{open_to_all} is not private" in not_private.stderr
    assert "set PROBE_RUNTIME_DIR" in impossible.stderr


def test_an_invalid_time_to_linger_is_said(runtime: str) -> None:
    done = probe("list", PROBE_RUNTIME_DIR=runtime, PROBE_LINGER="soon")

    assert done.returncode == 2
    assert "invalid PROBE_LINGER=soon" in done.stderr


ALONE = f"""
mount -t tmpfs none /dev/shm
mkdir -m 700 /dev/shm/full && mount -t tmpfs -o nr_inodes=1 none /dev/shm/full && chmod 700 /dev/shm/full
PROBE_RUNTIME_DIR=/dev/shm/full {PROBE} list; echo "full $?"
{PROBE} run {sys.executable} -c 'import sys; sys.stdin.read()' < $1 & TARGET=$!
while ! ls /dev/shm/probe-*/*/target.json 2>/dev/null >&2; do sleep 0.05; done
{PROBE} list >&2
echo sockets $(ls /dev/shm/probe-0/*.sock | wc -l)
{PROBE} $TARGET detach >&2
for i in $(seq 100); do ls /dev/shm/probe-0/*.sock >/dev/null 2>&1 || break; sleep 0.1; done
echo sockets $(ls /dev/shm/probe-0/*.sock 2>/dev/null | wc -l)
{PROBE} list >&2
setpriv --reuid 65534 --clear-groups {PROBE} list >&2; echo "other user $?"
echo sockets $(ls /dev/shm/probe-0/*.sock /dev/shm/probe-65534/*.sock | wc -l)
"""


@pytest.mark.skipif(os.geteuid() != 0 or not is_isolated_possible(), reason="only root can be alone, and another user")
def test_alone_on_a_host(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stdin")
    environment = {name: value for name, value in plain().items() if name != "PROBE_RUNTIME_DIR"}
    with (
        subprocess.Popen(
            [*ISOLATED, ALONE, "sh", str(tmp_path / "stdin")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as alone,
        open(tmp_path / "stdin", "w"),
    ):
        out, err = alone.communicate(timeout=100)

    assert "No space left on device" in err  # a file system without room for a socket
    assert out.splitlines()[:3] == ["full 4", "sockets 1", "sockets 0"], err  # the last target was detached
    if "Permission denied" not in err:  # where that user may run our Python
        assert out.splitlines()[3:] == ["other user 0", "sockets 2"], err


def test_an_archive_can_be_named_on_the_unix_socket_only(tmp_path: Path) -> None:
    with serving(tmp_path, "--listen", "TCP") as server:
        told = server.ask("GET", "/v1/targets", "control", params={"folder": "/etc"})

    assert told.status_code == 403
    assert json.loads(told.text)["error"]["kind"] == "Forbidden"


PROCESS_1 = """
import os, subprocess, sys
environment = {**os.environ, "PROBE_RUNTIME_DIR": sys.argv[2]}
subprocess.run([sys.argv[1], "query", "SELECT 1"], stdout=-3, stderr=-3, env=environment)
others = [name for name in os.listdir("/proc") if name.isdigit() and int(name) > 1]
print(others, os.listdir(sys.argv[2]))
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child")
"""


@pytest.mark.skipif(not is_isolated_possible(), reason="may not be alone")
@pytest.mark.situation("process 1 of a container, a command runs beside it", "it gets no child that it never started")
def test_a_job_that_is_process_1_gets_no_server_for_a_child(runtime: str) -> None:
    done = subprocess.run(
        [*ISOLATED[:-2], sys.executable, "-c", PROCESS_1, PROBE, runtime],
        env=plain(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )

    assert done.stdout.startswith("[] ")
    assert ".sock" not in done.stdout
    assert "no child" in done.stdout
