"""Main thread's stack of a target that does not release the GIL: faulthandler writes it in a signal handler.

Runs beside the target. The signal is sent only if the kernel says that the target handles it: otherwise it would kill
the job. Costs the target about 1 ms of its main thread.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence

from probe_agent.errors import NoAnswer
from probe_agent.untrusted_files import opened
from probe_agent.wire import Frame, ThreadStack

from .target import Target

__all__ = ["dump_stack", "parse", "parse_traceback"]

#: How long the dump may take to begin, and how long it must not grow to count as complete.
_BEGIN_S = 2.0
_QUIET_S = 0.03
_LOOK_EVERY_S = 0.005

_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?),? in (.*)')


def dump_stack(target: Target) -> ThreadStack:
    """Return the Python stack of `target`'s main thread, which handles the signals of a process. Raises NoAnswer."""
    number = target.identity.get("stacks_signal")
    process = target.process
    if process is None or not target.is_alive:
        raise NoAnswer(f"{target} has ended: it has no stacks", f"query what it recorded: probe {target.pid} tables")
    if process.state.startswith("stopped"):
        raise NoAnswer(
            f"{target} is {process.state}: it cannot write its stacks", f"continue it: kill -CONT {target.pid}"
        )
    try:
        if not isinstance(number, int) or not process.catches(number):
            raise NoAnswer(
                f"{target} does not answer, and faulthandler is not registered in it",
                f"read its memory: py-spy dump --nonblocking --pid {target.pid}",
            )
        before = _size(target)
        os.kill(process.pid, number)
    except OSError as error:
        raise NoAnswer(
            f"cannot signal {target} to write its stacks: {error}", "see with probe list if it has ended"
        ) from error
    return parse(_wait_for_dump(target, before))


def _wait_for_dump(target: Target, before: int) -> str:
    """Return what faulthandler appends. It marks no end, so a dump that stops growing is complete."""
    began = time.monotonic()
    size, grew = before, began
    while size == before or time.monotonic() - grew < _QUIET_S:
        now = time.monotonic()
        if size == before and now - began > _BEGIN_S:
            raise NoAnswer(
                f"{target} did not write its stacks within {_BEGIN_S:g} s of the signal",
                f"see where it waits in the kernel: cat /proc/{target.pid}/wchan",
            )
        time.sleep(_LOOK_EVERY_S)
        current = _size(target)
        if current != size:
            size, grew = current, time.monotonic()
    with opened(target.stacks_path) as descriptor:
        return os.pread(descriptor, size - before, before).decode("utf-8", "replace")


def _size(target: Target) -> int:
    with opened(target.stacks_path) as descriptor:
        return os.fstat(descriptor).st_size


def parse(dump: str) -> ThreadStack:
    """Return the frames in faulthandler's text, the innermost first. The text does not name the thread."""
    frames = _frames([match for line in dump.splitlines() if (match := _FRAME.match(line))])
    return ThreadStack("MainThread", 0, None, True, False, False, frames)


def parse_traceback(text: str) -> tuple[Frame, ...]:
    """Return the frames of a traceback of Python's, the innermost first; it names them last."""
    return _frames([match for line in reversed(text.splitlines()) if (match := _FRAME.match(line))])


def _frames(found: Sequence[re.Match[str]]) -> tuple[Frame, ...]:
    return tuple(
        Frame(func, _unescaped(file), int(lineno) if lineno.isdigit() else 0, depth, "python", None)
        for depth, (file, lineno, func) in enumerate(match.groups() for match in found)
    )


def _unescaped(text: str) -> str:
    r"""faulthandler writes what is not ASCII as \xe9, \u20ac or \U0001f600."""
    return re.sub(
        r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))",
        lambda match: chr(int(match[1] or match[2] or match[3], 16)),
        text,
    )
