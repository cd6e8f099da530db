"""Ways to get stuck, and to die: in a lock, a pipe, the kernel, a C call that keeps the GIL."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from probe_agent.cgroups import levels

__all__ = [
    "die",
    "fill_cgroup",
    "for_ever",
    "hold_gil",
    "lock",
    "read_pipe",
    "remove_cgroup",
    "rlock",
    "spin",
    "wait_in_the_kernel",
]


def for_ever() -> None:
    while True:
        time.sleep(3600)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lock() -> None:
    shared = threading.Lock()

    def keep() -> None:
        with shared:
            for_ever()

    threading.Thread(target=keep, name="keeper", daemon=True).start()
    while not shared.locked():
        time.sleep(0.01)
    with shared:
        pass


def rlock() -> None:
    shared = threading.RLock()
    is_held = threading.Event()

    def keep() -> None:
        with shared:
            is_held.set()
            for_ever()

    threading.Thread(target=keep, name="keeper", daemon=True).start()
    is_held.wait()
    with shared:
        pass


def read_pipe() -> None:
    reader, _ = os.pipe()
    os.read(reader, 1)


def hold_gil() -> None:
    ctypes.PyDLL(None).sleep(3600)


def spin() -> None:
    while True:
        pass


def wait_in_the_kernel(folder: Path, seconds: float | None = None) -> None:
    """Wait uninterruptibly (state D), as for storage that does not answer: a parent of `vfork` waits so until its child
    runs a program, and this child opens a FIFO before that."""
    fifo = folder / f"storage_{os.getpid()}"  # two loader workers may wait at once
    os.mkfifo(fifo)
    if seconds is not None:
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds}); open({str(fifo)!r}, 'w')"])
    libc = ctypes.CDLL(None, use_errno=True)  # unlike os.posix_spawn it releases the GIL, as reading a file does
    actions, pid = ctypes.create_string_buffer(256), ctypes.c_int()
    libc.posix_spawn_file_actions_init(actions)
    libc.posix_spawn_file_actions_addopen(actions, 0, os.fsencode(fifo), os.O_RDONLY, 0)
    arguments = (ctypes.c_char_p * 2)(b"true", None)
    libc.posix_spawnp(ctypes.byref(pid), b"true", actions, None, arguments, None)
    os.waitpid(pid.value, 0)
    fifo.unlink()


def fill_cgroup() -> None:
    """Be killed by the OOM killer of a control group: this process enters one of its own, of 128 MiB."""
    group = _cgroup_of(os.getpid())
    group.mkdir()
    is_first = (group / "memory.limit_in_bytes").exists()  # version 1
    (group / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(2**27))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    kept = []
    while True:
        kept.append(bytearray(b"x" * 2**24))


def remove_cgroup(pid: int) -> None:
    """Remove the control group that a process has made, once it has ended."""
    with suppress(FileNotFoundError):
        _cgroup_of(pid).rmdir()


def _cgroup_of(pid: int) -> Path:
    above = next(level.folder for level in levels(Path("/proc/self/cgroup").read_text(), "memory"))
    return above / f"hangs_{pid}"
