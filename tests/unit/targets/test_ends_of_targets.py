"""The end of a target, read from its folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from probe_agent.recorder.guest.end_mark import exit_code_of, mark_end, mark_gone
from probe_agent.recorder.samplers import oom_kills
from probe_agent.targets.ended import end_of


def mark_exit_code(folder: Path, code: int) -> None:
    (folder / "exit_code").write_bytes(b"\xff" * 24 + code.to_bytes(8, "little") + b"\xff" * 32)


@pytest.mark.parametrize(
    ("how", "error", "code", "told", "badly"),
    [
        ("raised", "ValueError: no", 1, "raised ValueError: no", True),
        ("exit", "", None, "exited normally", False),
        ("exit", "", 0, "exited normally", False),
        ("exit", "", 3, "exited with code 3", True),
    ],
)
def test_an_exit_is_told_as_the_target_said_it(
    how: str, error: str, code: int | None, told: str, badly: bool, tmp_path: Path
) -> None:
    mark_end(str(tmp_path), 5.0, how, error)
    if code is not None:
        mark_exit_code(tmp_path, code)

    end = end_of(str(tmp_path))

    assert end is not None
    assert (end.at, end.how, end.badly, end.code) == (5.0, told, badly, code)


@pytest.mark.parametrize(
    ("code", "told", "badly"),
    [
        (-9, "was killed by SIGKILL", True),
        (0, "exited with code 0, without its exit handlers", False),
        (None, "disappeared, cause unknown", True),
    ],
)
def test_a_death_is_told_as_a_witness_saw_it(code: int | None, told: str, badly: bool, tmp_path: Path) -> None:
    mark_gone(str(tmp_path), 5.0, code, "the host server")

    end = end_of(str(tmp_path))

    assert end is not None
    assert (end.at, end.how, end.badly) == (5.0, told, badly)


@pytest.mark.parametrize(
    ("how", "error", "told"),
    [
        ("exit", "", "was killed by SIGSEGV at exit"),
        ("raised", "ValueError: no", "raised ValueError: no, and was killed by SIGSEGV while it ended"),
    ],
)
def test_one_that_is_killed_while_it_exits_has_ended_when_it_began_to(
    how: str, error: str, told: str, tmp_path: Path
) -> None:
    mark_end(str(tmp_path), 5.0, how, error)
    mark_gone(str(tmp_path), 6.0, -11, "the host server")

    end = end_of(str(tmp_path))

    assert end is not None
    assert (end.at, end.how, end.signal) == (5.0, told, "SIGSEGV")


def test_the_first_witness_counts(tmp_path: Path) -> None:
    mark_gone(str(tmp_path), 6.0, -15, "one")
    mark_gone(str(tmp_path), 7.0, None, "another")
    mark_gone(str(tmp_path / "detached"), 6.0, -15, "one")

    end = end_of(str(tmp_path))

    assert end is not None
    assert (end.at, end.how, end.known_from) == (6.0, "was killed by SIGTERM", ("one",))


def test_a_kill_is_the_oom_killers_if_it_has_struck_since(tmp_path: Path) -> None:
    counter = next((path for path in oom_kills._counters() if oom_kills._kills_in(path) is not None), None)
    if counter is None:
        pytest.skip("this process is in a root cgroup, which counts no kills")
    (tmp_path / "oom.json").write_text(json.dumps({"file": counter, "kills": -1}))
    mark_gone(str(tmp_path), 6.0, -9, "one")

    end = end_of(str(tmp_path))

    assert end is not None
    assert end.how == "was killed by SIGKILL: probably the OOM killer, which has struck in its cgroup since"


def test_for_an_unseen_end_the_last_tick_is_shown(tmp_path: Path) -> None:
    os.utime(tmp_path, (7.0, 7.0))

    end = end_of(str(tmp_path))

    assert end is not None
    assert (end.at, end.last_seen, end.badly) == (None, 7.0, True)
    assert end_of(str(tmp_path / "none")) is None


@pytest.mark.parametrize(("last", "code"), [("os._exit(3)", 3), ("os.kill(os.getpid(), 9)", -9)])
def test_the_code_of_a_process_that_has_just_died_is_read_before_its_parent_takes_it(last: str, code: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", f"import os; {last}"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    seen = exit_code_of(process.pid)

    process.wait()
    assert seen == code
    assert exit_code_of(process.pid) is None


def test_a_pidfd_tells_the_exit_code_after_the_parent_has_reaped(tmp_path: Path) -> None:
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) < (6, 15):
        pytest.skip("this kernel does not keep it")
    process = subprocess.Popen(["sleep", "60"])
    descriptor = os.pidfd_open(process.pid)
    process.kill()
    process.wait()

    seen = exit_code_of(process.pid, descriptor)

    os.close(descriptor)
    assert seen == -9
