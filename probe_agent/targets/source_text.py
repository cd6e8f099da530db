"""Source lines of frames, read from the target's own files.

Runs beside the target. Files are opened through /proc/PID/root, so that those of a container are found; once the target
has ended, in our own file system. A file that has changed since the target read it shows the wrong text, as in any
traceback.

The target names these files and may have put links there. So links are followed as the target would follow them, and
root reads nothing that the target could not read itself.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from probe_agent.procfs import Process
from probe_agent.untrusted_files import as_user, opened_inside
from probe_agent.wire import Backtrace, Frame, ThreadStack

from .lock_blocks import locks_around
from .target import Target

__all__ = ["read_source", "source_line", "with_source"]

_MAX_SOURCE_BYTES = 8 << 20
#: A lock that is held, in the text of a local variable.
_HELD = re.compile(r"<RLock held|<lock \S+, locked>")


def with_source(target: Target, taken: Backtrace) -> Backtrace:
    """Add the text of its line to each frame whose file can be read, and the locks that it is run under."""
    read: dict[str, tuple[bytes, list[str]]] = {}

    def shown(frame: Frame) -> Frame:
        if frame.source is not None or frame.frame_type == "native":
            return frame
        if frame.file not in read:
            content = read_source(target, frame.file) or b""
            read[frame.file] = content, content.decode("utf-8", "replace").splitlines()
        content, lines = read[frame.file]
        locks = locks_around(content, frame.lineno) if _HELD.search(" ".join((frame.locals or {}).values())) else ()
        source = lines[frame.lineno - 1].strip() if 0 < frame.lineno <= len(lines) else None
        return replace(frame, source=source, locks=locks)

    def all_shown(threads: tuple[ThreadStack, ...]) -> tuple[ThreadStack, ...]:
        return tuple(replace(thread, frames=tuple(map(shown, thread.frames))) for thread in threads)

    return replace(
        taken,
        threads=all_shown(taken.threads),
        tasks=tuple(replace(task, frames=tuple(map(shown, task.frames))) for task in taken.tasks),
        workers=tuple(replace(worker, threads=all_shown(worker.threads)) for worker in taken.workers),
    )


def source_line(target: Target, file: str, lineno: int) -> str | None:
    """Return the text of one line as `target` sees its file; None if it cannot be read."""
    lines = _lines(target, file)
    return lines[lineno - 1].strip() if 0 < lineno <= len(lines) else None


def _lines(target: Target, file: str) -> list[str]:
    """Return the lines of `file` as `target` sees it; none if it is no file, such as <string>."""
    return (read_source(target, file) or b"").decode("utf-8", "replace").splitlines()


def read_source(target: Target, file: str) -> bytes | None:
    """Return the first 8 MiB of `file` as `target` sees it; None if it is no file, such as <string>, or cannot be
    read."""
    process = target.process
    if file.startswith("<"):
        return None
    if process is not None and process.is_alive:
        place = f"{process.proc}/{'root' if os.path.isabs(file) else 'cwd'}"
    elif os.path.isabs(file) and not target.is_alive:
        place, process = "/", None
    else:
        return None
    try:
        with _with_its_rights(target, process), opened_inside(place, file) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            with open(descriptor, "rb", closefd=False) as opened:
                return opened.read(_MAX_SOURCE_BYTES)
    except OSError:
        return None  # removed, or not readable for the target


def _with_its_rights(target: Target, process: Process | None) -> AbstractContextManager[None]:
    """Read with the target's rights if we are root; other users have no rights that the target has not. One that has
    ended is known by the owner of its folder.

    Raises PermissionError if the process does not belong to the user whose folder names it."""
    if os.geteuid() != 0:
        return nullcontext()
    if process is None:
        owner = os.lstat(target.folder)
        return as_user(owner.st_uid, owner.st_gid)
    uid, gid, groups = process.file_rights
    if target.has_recorder and os.lstat(target.folder).st_uid != uid:
        raise PermissionError(f"pid {process.pid} belongs to another user than its folder")
    return as_user(uid, gid, groups)
