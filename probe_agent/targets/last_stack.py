"""Last stack of a target that has ended: of its fatal signal, of its uncaught exception, or the last sample it wrote.

Runs beside the target, out of its files.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timezone

from probe_agent.errors import NoAnswer
from probe_agent.recorder.ring.folder import FATAL
from probe_agent.wire import Backtrace, Frame, ThreadStack

from .ended import exceptions_of
from .faulthandler import parse, parse_traceback
from .folder_files import read_text
from .stalls import read_stall_snapshot
from .target import Target

__all__ = ["last_stack"]


def last_stack(target: Target, *, all_threads: bool) -> Backtrace:
    """Return the last stack that an ended target left, with a note that says which; of a sample, those of all threads
    if wanted. Raises NoAnswer."""
    end = target.end
    how = end.how if end is not None else "ended, cause unknown"
    dump, _ = read_text(os.path.join(target.folder, FATAL))
    if end is not None and end.signal is not None and (stack := parse(_newest(dump))).frames:
        note = f"{target} {how}; this is the stack of the thread that failed, written by faulthandler"
        return Backtrace((_named(stack),), "faulthandler", (note,))
    chain = exceptions_of(target.folder)
    if chain:
        thread = ThreadStack(
            str(chain[0]["thread"]), 0, None, bool(chain[0]["is_main"]), False, False, _frames(chain[0]["traceback"])
        )
        where = "this is the stack of the exception" if chain[0]["is_main"] else _of_thread(chain[0])
        causes = tuple(_cause(link) for link in chain[1:])
        return Backtrace((thread,), "exception", (f"{target} {how}; {where}", *causes))
    samples = [sample for sample in (_of_stall(target), _of_held_gil(target)) if sample is not None]
    if samples:
        at, said, threads, source = max(samples, key=lambda sample: sample[0])
        wanted = tuple(one for one in threads if all_threads or one.is_main or one.is_training)
        return Backtrace(wanted, source, (f"{target} {how}; this is where it was at {_clock(at)} UTC, {said}",))
    raise NoAnswer(f"{target} {how}, and left no stack", f"query what it recorded: probe {target.pid} tables")


#: When a sample was taken, why, its threads, and who took it.
Sample = tuple[float, str, tuple[ThreadStack, ...], str]


def _of_stall(target: Target) -> Sample | None:
    """Return the stacks in the snapshot of the newest stall."""
    snapshot = read_stall_snapshot(target)
    at = snapshot.stall.get("noticed") if snapshot is not None else None
    if snapshot is None or not isinstance(at, int | float):
        return None
    frames: dict[object, list[Frame]] = {}
    threads = []
    try:
        for row in snapshot.rows("frames"):
            one = Frame(
                str(row["func"]), str(row["file"]), int(row["lineno"]), int(row["depth"]), "python", row["source"]
            )
            frames.setdefault(row["number"], []).append(one)
        for number, row in enumerate(snapshot.rows("threads")):
            flags = (bool(row["is_main"]), bool(row["is_training"]), bool(row["is_probe"]))
            threads.append(ThreadStack(row["thread"], 0, row["tid"], *flags, tuple(frames.get(number, ()))))
    except (KeyError, TypeError, ValueError):
        return None  # not written by this version
    return (at, "in the snapshot of its newest stall", tuple(threads), "recorder") if threads else None


def _of_held_gil(target: Target) -> Sample | None:
    """Return the newest stack that was asked for while the GIL was held."""
    dump, at = read_text(target.stacks_path)
    stack = parse(_newest(dump))
    return (at, "when a command asked while the GIL was held", (stack,), "faulthandler") if stack.frames else None


def _named(stack: ThreadStack) -> ThreadStack:
    """Return the stack of a thread that faulthandler does not name: only the main thread runs a module."""
    is_main = stack.frames[-1].func == "<module>"
    return stack if is_main else replace(stack, thread=None, is_main=False)


def _newest(dump: str) -> str:
    """Return the last dump in a file of faulthandler's, whose dumps follow one another."""
    return dump[max(0, dump.rfind("(most recent call first)")) :]


def _frames(text: object) -> tuple[Frame, ...]:
    return parse_traceback(str(text or ""))


def _of_thread(link: dict[str, object]) -> str:
    said = f"{link['type']}: {link['message']}".partition("\n")[0]
    return f"this is the stack of the last exception that went uncaught in one of its threads, {said}"


def _cause(link: dict[str, object]) -> str:
    said = f"{link['type']}: {link['message']}".partition("\n")[0]
    place = f", raised by {link['func']} ({link['file']}:{link['lineno']})" if link["func"] else ""
    return f"{'caused by' if link['relation'] == 'cause' else 'while handling'} {said}{place}"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%H:%M:%S")
