"""The main thread's stack of a target in which nobody can take the GIL: faulthandler writes it from a signal handler.

Runs beside the target. The signal is sent only when the kernel says that the target has a handler for it: without
one it would kill the training. Costs the target about a millisecond of its main thread.
"""

from __future__ import annotations

import os
import re
import time

from probe_agent.errors import NoAnswer
from probe_agent.untrusted_files import opened
from probe_agent.wire import Frame, ThreadStack

from .target import Target

__all__ = ["dump_stack", "parse"]

#: How long the dump may take to begin, and for how long it must not grow to count as complete.
_BEGIN_S = 2.0
_QUIET_S = 0.03
_LOOK_EVERY_S = 0.005

_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


def dump_stack(target: Target) -> ThreadStack:
    """The Python stack of `target`'s main thread, which takes the signals of a process. Raises NoAnswer."""
    number = target.identity.get("stacks_signal")
    process = target.process
    if process is None or not target.is_alive:
        raise NoAnswer(f"{target} has ended: it has no stacks", "what it recorded can still be queried with SQL")
    if process.state.startswith("stopped"):
        raise NoAnswer(f"{target} is {process.state}: it cannot say where it is", f"try: kill -CONT {target.pid}")
    try:
        if not isinstance(number, int) or not process.catches(number):
            raise NoAnswer(
                f"{target} does not answer, and its emergency dump of stacks is not armed",
                f"look from outside: py-spy dump --nonblocking --pid {target.pid}",
            )
        before = _size(target)
        os.kill(process.pid, number)
    except OSError as error:
        raise NoAnswer(f"{target} could not be asked for an emergency dump: {error}", "has it ended?") from error
    return parse(_wait_for_dump(target, before))


def _wait_for_dump(target: Target, before: int) -> str:
    """What faulthandler appends; it says nowhere that it is done, so a dump that stops growing is."""
    began = time.monotonic()
    size, grew = before, began
    while size == before or time.monotonic() - grew < _QUIET_S:
        now = time.monotonic()
        if size == before and now - began > _BEGIN_S:
            raise NoAnswer(
                f"{target} did not write its stacks within {_BEGIN_S:g} s, though it got the signal",
                f"it may wait in the kernel; see: cat /proc/{target.pid}/wchan",
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
    """The frames in faulthandler's text, the innermost first. Which thread it is, the text does not say."""
    found = [match for line in dump.splitlines() if (match := _FRAME.match(line))]
    frames = tuple(
        Frame(func, _unescaped(file), int(lineno) if lineno.isdigit() else 0, depth, "python", None)
        for depth, (file, lineno, func) in enumerate(match.groups() for match in found)
    )
    return ThreadStack("MainThread", 0, None, True, False, False, frames)


def _unescaped(text: str) -> str:
    r"""faulthandler writes what is not ASCII as \xe9, \u20ac or \U0001f600."""
    return re.sub(
        r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))",
        lambda match: chr(int(match[1] or match[2] or match[3], 16)),
        text,
    )
