"""Living targets, ended ones, and the files that are removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from probe_agent.recorder.ring import folder

HOLDER = """
import sys, time
from probe_agent.recorder.ring import folder
folder.hold(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


def test_a_folder_is_held_until_its_owner_is_killed(tmp_path):
    owner = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    owner.stdout.readline()
    held = folder.is_held(str(tmp_path))

    owner.send_signal(signal.SIGKILL)
    owner.wait()

    assert held
    assert not folder.is_held(str(tmp_path))


def test_the_newest_dead_are_kept_and_the_living_are_not_touched(tmp_path):
    long_ago = time.time() - 10_000
    for number in range(6):
        (tmp_path / f"{number}-1").mkdir()
        (tmp_path / f"{number}-1" / "x.ring").touch()
        os.utime(tmp_path / f"{number}-1", (long_ago + number, long_ago + number))
    (tmp_path / "starting-1").mkdir()
    descriptor = folder.hold(str(tmp_path / "0-1"))

    folder.prune(str(tmp_path), keep=2)

    os.close(descriptor)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-1", "4-1", "5-1", "starting-1"]


def test_the_dead_go_after_a_week(tmp_path):
    now = time.time()
    for name, days in (("young-1", 6.9), ("old-1", 7.1), ("alive-1", 8.0)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (now - days * 86_400,) * 2)
    descriptor = folder.hold(str(tmp_path / "alive-1"))

    folder.prune(str(tmp_path))

    os.close(descriptor)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alive-1", "young-1"]


def test_another_users_folder_is_refused(tmp_path):
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "mine")

    folder.check_owner(str(tmp_path / "mine"), os.getuid())

    for name, uid in (("open", os.getuid()), ("link", os.getuid()), ("mine", os.getuid() + 1)):
        with pytest.raises(PermissionError):
            folder.check_owner(str(tmp_path / name), uid)


def test_the_start_time_is_found_behind_any_command_name():
    assert folder.start_ticks("7 (a) b (c) S " + " ".join(str(number) for number in range(4, 30))) == 22


def test_a_file_that_is_written_while_the_folder_goes_goes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "1-2"
    target.mkdir()
    (target / "target.json").touch()
    late = iter([target / "peers.json"])

    def rmdir(path: str, real: Callable[[str], None] = os.rmdir) -> None:
        for file in late:  # once
            file.touch()
        real(path)

    monkeypatch.setattr(os, "rmdir", rmdir)
    folder.remove(str(target))

    assert not target.exists()
