"""The source text of a frame, from files that the target names and may have replaced by links."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from probe_agent.procfs import read_process
from probe_agent.targets import with_source
from probe_agent.targets.target import without_recorder
from probe_agent.untrusted_files import opened_inside
from probe_agent.wire import Backtrace, Frame, ThreadStack

NOBODY = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of somebody else")


@contextmanager
def sleeping(before: str = "", **how: Any) -> Iterator[int]:
    """A process that sleeps after the Python line `before`."""
    code = f"import os, sys\n{before}\nprint('ready', flush=True)\nsys.stdin.read()"
    how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, **how}
    with subprocess.Popen([sys.executable, "-c", code], **how) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


def source(pid: int, file: str) -> str | None:
    """Return the first line of `file`, as a frame of process `pid` would show it."""
    frame = Frame(func="f", file=file, lineno=1, depth=0, frame_type="python", source=None)
    thread = ThreadStack("MainThread", 1, pid, True, False, False, (frame,))
    process = read_process(pid)
    assert process is not None
    shown = with_source(without_recorder(process), Backtrace((thread,), "outside", ()))
    return shown.threads[0].frames[0].source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder open to all users, with a file for all users, one for root, one for root's group, and links."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    for name, mode in (("open.py", 0o644), ("secret", 0o600), ("groups", 0o640)):
        (tmp_path / name).write_text(f"text of {name}\n")
        (tmp_path / name).chmod(mode)
        (tmp_path / f"to-{name}").symlink_to(tmp_path / name)
    return tmp_path


def test_lines_are_found_through_links_and_beside_the_target(folder: Path) -> None:
    with sleeping(cwd=folder) as pid:
        shown = [source(pid, file) for file in (f"{folder}/open.py", f"{folder}/to-open.py", "open.py", "<string>")]

    assert shown == ["text of open.py"] * 3 + [None]


@root_only
def test_root_shows_nothing_that_the_target_could_not_read(folder: Path) -> None:
    names = ("open.py", "to-open.py", "secret", "to-secret", "groups", "to-groups")
    become = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})"

    with sleeping(become) as pid:
        shown = [source(pid, f"{folder}/{name}") for name in names]

    assert shown == ["text of open.py"] * 2 + [None] * 4
    assert (folder / "to-secret").read_text() == "text of secret\n"  # and we are root again
    assert (folder / "groups").read_text() == "text of groups\n"


@root_only
def test_a_link_leads_where_the_target_sees_it_lead(folder: Path) -> None:
    (folder / "jail").mkdir()
    (folder / "jail/open.py").write_text("text inside\n")
    for name, to in (("up", "../open.py"), ("absolute", "/open.py"), ("outside", f"{folder}/open.py")):
        (folder / "jail" / name).symlink_to(to)

    with sleeping(f"os.chroot({str(folder / 'jail')!r}); os.chdir('/')") as pid:
        shown = [source(pid, f"/{name}") for name in ("open.py", "up", "absolute", "outside")]

    assert shown == ["text inside"] * 3 + [None]


def test_the_links_of_the_kernel_are_not_followed() -> None:
    with pytest.raises(OSError, match="symbolic links"), opened_inside("/", "/proc/self/root/etc/passwd"):
        pass


def test_a_path_that_is_not_a_file_has_no_text(folder: Path) -> None:
    os.mkfifo(folder / "pipe")

    with sleeping() as pid:
        shown = [source(pid, file) for file in (f"{folder}/pipe", str(folder), "/dev/zero")]

    assert shown == [None] * 3
