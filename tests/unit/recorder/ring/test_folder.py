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

from probe_agent.recorder.config import Settings
from probe_agent.recorder.ring import folder

HOLDER = """
import sys, time
from probe_agent.recorder.config import Settings
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


MIB = 1 << 20


def dead(folder_: Path, name: str, age_s: float, num_bytes: int = 0) -> None:
    """Make what a dead target leaves, last touched `age_s` ago."""
    (folder_ / name).mkdir()
    (folder_ / name / "target.json").touch()
    (folder_ / name / "x.ring").write_bytes(b"x" * num_bytes)
    os.utime(folder_ / name, (time.time() - age_s,) * 2)


def test_the_oldest_dead_go_when_they_take_too_much_space_and_the_living_stay(tmp_path: Path) -> None:
    for age_s in range(1, 7):
        dead(tmp_path, f"{age_s}-1", age_s, MIB)
    (tmp_path / "starting-1").mkdir()
    descriptor = folder.hold(str(tmp_path / "6-1"))

    folder.prune(str(tmp_path), 3600, 3.5 * MIB)

    os.close(descriptor)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-1", "2-1", "3-1", "6-1", "starting-1"]


def test_the_dead_go_when_their_time_is_over(tmp_path: Path) -> None:
    for name, hours in (("young-1", 23.9), ("old-1", 24.1), ("alive-1", 30.0)):
        dead(tmp_path, name, hours * 3600)
    descriptor = folder.hold(str(tmp_path / "alive-1"))

    folder.prune(str(tmp_path), *Settings({}).kept_after_death)

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
