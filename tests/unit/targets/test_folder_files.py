"""The end of a target, read from its folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from probe_agent.recorder.guest.end_mark import exit_code_of, mark_end
from probe_agent.targets.folder_files import end_of


@pytest.mark.parametrize(
    ("how", "more", "told", "badly"),
    [
        ("raised", {"error": "ValueError: no"}, "raised ValueError: no", True),
        ("exit", {"error": ""}, "exited normally", False),
        ("gone", {"code": -9}, "was killed by SIGKILL", True),
        ("gone", {"code": 0}, "exited with code 0, without its exit handlers", False),
        ("gone", {"code": None}, "disappeared, cause unknown", True),
    ],
)
def test_an_end_is_shown_as_recorded(how: str, more: dict[str, object], told: str, badly: bool, tmp_path: Path) -> None:
    mark_end(str(tmp_path), 5.0, how, **more)

    end = end_of(str(tmp_path))

    assert end is not None
    assert (end.at, end.how, end.badly) == (5.0, told, badly)


def test_the_first_word_on_an_end_stands(tmp_path: Path) -> None:
    mark_end(str(tmp_path), 5.0, "raised", error="ValueError")
    mark_end(str(tmp_path), 6.0, "gone", code=-15)
    mark_end(str(tmp_path / "detached"), 6.0, "gone", code=-15)

    end = end_of(str(tmp_path))

    assert end is not None
    assert (end.at, end.how) == (5.0, "raised ValueError")


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
