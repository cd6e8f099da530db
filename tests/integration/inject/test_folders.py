"""The place of the recorder's files when there is little room, or a trap on the way there."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from probe_agent import inject
from probe_agent.inject import handshake
from probe_agent.inject.folder import folders
from probe_agent.inject.threads.tracee import Tracee
from probe_agent.targets import TargetDirectory

from .conftest import detach
from .programs import FOREVER, NOBODY, SYSTEM_PYTHON, needs_root, program, refused, with_mounts

#: Both bases are the test's own.
SHM = "mount -t tmpfs -o mode=1777 none /dev/shm && mount -t tmpfs -o mode=1777 none /tmp"
AS_NOBODY = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")


def base_used(before: tuple[str, ...], **how: Any) -> str:
    """Attach, detach, and return the base of the recorder's folder."""
    if before:
        needs_root()
    with program(FOREVER, python=SYSTEM_PYTHON if before else sys.executable, before=before, **how) as process:
        attached = inject.attach(process.pid)
        detach(attached)
    return str(attached.folder.parent.parent)


@pytest.mark.situation("a full /dev/shm", "works: its files go to /tmp")
def test_a_full_shared_memory() -> None:
    assert (
        base_used(
            with_mounts(f"{SHM} && mount -o remount,size=256k /dev/shm && (cat /dev/zero >/dev/shm/full; :) 2>&-")
        )
        == "/tmp"
    )


@pytest.mark.situation("a read-only /dev/shm", "works: its files go to /tmp")
def test_a_read_only_shared_memory() -> None:
    assert base_used(with_mounts(f"{SHM} && mount -o remount,ro /dev/shm")) == "/tmp"


@pytest.mark.situation("a noexec /dev/shm or /tmp", "works: nothing is executed from there")
def test_a_shared_memory_that_nothing_can_be_executed_from() -> None:
    assert base_used(with_mounts(f"{SHM} && mount -o remount,noexec,nosuid,nodev /dev/shm")) == "/dev/shm"


@pytest.mark.situation("HOME and all other variables unset", "works")
def test_an_empty_environment() -> None:
    assert base_used((), env={}) == "/dev/shm"


@pytest.mark.situation("neither /dev/shm nor /tmp has 64 MiB", "refused; --shm-size is named")
def test_no_room_anywhere() -> None:
    small = f"{SHM} && mount -o remount,size=1m /dev/shm && mount --bind /dev/shm /tmp"
    needs_root()
    with (
        program(FOREVER, python=SYSTEM_PYTHON, before=with_mounts(small), cwd="/") as process,
        refused(process.pid, "/dev/shm: 1 MiB free, /tmp: 1 MiB free", "docker run --shm-size=256m"),
    ):
        pass


#: What the target does before it says that it is ready: HERE is where its folder would be, ROOTS is root's own.
TRAPS = {
    "the folder of its user leads to root's": "os.symlink(ROOTS, os.path.dirname(HERE))",
    "its own folder leads to root's": "os.mkdir(os.path.dirname(HERE), 0o700); os.symlink(ROOTS, HERE)",
    "the payload leads to root's": (
        "os.makedirs(HERE, 0o700); os.symlink(ROOTS + '/file', HERE + '/payload.py.new');"
        "os.symlink(ROOTS + '/file', HERE + '/payload.py')"
    ),
}
WHERE = """
import os
with open('/proc/self/stat') as file:
    HERE = f"/dev/shm/probe-{{os.getuid()}}/{{os.getpid()}}-{{file.read().rpartition(')')[2].split()[19]}}"
ROOTS = {roots!r}
"""


@pytest.mark.situation("another user's, with links where root would create files", "works; no link is followed")
@pytest.mark.parametrize("trap", TRAPS)
def test_root_follows_no_link_that_a_user_has_laid(tmp_path: Path, trap: str) -> None:
    needs_root()
    before = with_mounts(SHM) + AS_NOBODY
    code = WHERE.format(roots=str(tmp_path)) + TRAPS[trap] + FOREVER
    with program(code, python=SYSTEM_PYTHON, before=before, cwd="/") as process:
        seen = inject.examine(process.pid)
        attached = inject.attach(process.pid)
        inside = Path(f"/proc/{process.pid}/root{attached.folder}")
        owners = {path.lstat().st_uid for path in (inside, *inside.iterdir())}
        detach(attached)

    assert all(check.ok for check in seen)
    assert owners == {NOBODY}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.situation("both folders are traps", "refused; nothing is created where they lead")
def test_root_refuses_when_there_are_only_traps(tmp_path: Path) -> None:
    needs_root()
    before = with_mounts(f"{SHM} && mount --bind /dev/shm /tmp") + AS_NOBODY
    code = WHERE.format(roots=str(tmp_path)) + "os.symlink(ROOTS, os.path.dirname(HERE))" + FOREVER
    with (
        program(code, python=SYSTEM_PYTHON, before=before, cwd="/") as process,
        refused(process.pid, "a link that could lead anywhere", "in /dev/shm or /tmp"),
    ):
        pass

    assert list(tmp_path.iterdir()) == []


@pytest.mark.situation("its socket is a link to another one", "not connected to")
def test_root_connects_to_no_socket_that_a_link_leads_to(tmp_path: Path) -> None:
    needs_root()
    with socket.socket(socket.AF_UNIX) as roots:
        roots.bind(str(tmp_path / "roots.sock"))
        roots.listen()
        roots.setblocking(False)
        code = (
            WHERE.format(roots=str(tmp_path))
            + "import json; os.makedirs(HERE, 0o700); os.symlink(ROOTS + '/roots.sock', HERE + '/control.sock')\n"
            + "pid, ticks = map(int, os.path.basename(HERE).split('-'))\n"
            + "said = dict(pid=pid, host_pid=pid, start_ticks=ticks, rank=0, world_size=1)\n"
            + "with open(HERE + '/target.json', 'w') as file: json.dump(said, file)\n"
            + FOREVER
        )
        before = with_mounts(SHM) + AS_NOBODY
        with program(code, python=SYSTEM_PYTHON, before=before, cwd="/") as process:
            answer = handshake.hello(Tracee(process.pid), folders(Tracee(process.pid))[0])
            listed = [target.pid for target in TargetDirectory().targets()]

        with pytest.raises(BlockingIOError):
            roots.accept()
    assert answer is None
    assert process.pid in listed
