"""Program that reads C and Python frames of a process with pystack: `python -I pystack_program.py PID all|python`.

Runs in a process of its own, which ptrace stops the target for: if it ends at any instant, the kernel lets the target
go on. Writes one JSON object: the threads, innermost frame first, and how long the target stood still at most.
"""

from __future__ import annotations

import json
import signal
import sys
from time import perf_counter

from pystack.engine import NativeReportingMode, get_process_threads
from pystack.types import NativeFrame, PyFrame, PyThread, frame_type

#: Later than whoever has started this gives up: if no process is left to end it, it ends by itself.
LIMIT_S = 10
#: Below the first Python frame it is the same for every process.
_START = {"_start", "__libc_start_main", "__libc_start_call_main", "clone", "clone3", "start_thread", "__clone"}


def main(pid: int, mode: str) -> None:
    signal.alarm(LIMIT_S)
    reporting = NativeReportingMode.ALL if mode == "all" else NativeReportingMode.PYTHON
    began = perf_counter()
    threads = list(get_process_threads(pid, stop_process=True, native_mode=reporting))
    stopped_s = perf_counter() - began
    json.dump({"stopped_s": stopped_s, "threads": [_thread(thread) for thread in threads]}, sys.stdout)


def _thread(thread: PyThread) -> dict[str, object]:
    frames, is_merged = _merged(thread)
    return {
        "tid": thread.tid,
        "name": thread.name,
        "holds_gil": thread.holds_the_gil > 0,
        "is_python": thread.frame is not None,
        "is_merged": is_merged,
        "frames": frames[::-1],
    }


def _merged(thread: PyThread) -> tuple[list[dict[str, object]], bool]:
    """Return its frames, outermost first: each call of the interpreter's loop stands for the Python frames that it
    runs. Where the C stack does not have as many of these as Python has, the Python frames alone."""
    kinds = [(frame, frame_type(frame, thread.python_version)) for frame in thread.native_frames]
    num_loops = sum(1 for _, kind in kinds if kind is NativeFrame.FrameType.EVAL)
    if num_loops != sum(1 for frame in thread.all_frames if frame.is_entry):
        return [_python(frame) for frame in thread.frames], False
    frames: list[dict[str, object]] = []
    python = thread.first_frame
    for native, kind in kinds:
        if kind is NativeFrame.FrameType.EVAL:
            while python is not None:
                frames.append(_python(python))
                python = python.next
                if python is None or python.is_entry:
                    break
        elif kind is NativeFrame.FrameType.OTHER and native.symbol.partition("@")[0] not in _START:
            frames.append(_native(native))
    return frames, True


def _python(frame: PyFrame) -> dict[str, object]:
    return {"func": frame.code.scope, "file": frame.code.filename, "lineno": frame.code.location.lineno}


def _native(frame: NativeFrame) -> dict[str, object]:
    has_source = frame.linenumber > 0
    return {
        "func": frame.symbol,
        "file": frame.path if has_source else frame.library or frame.path,
        "lineno": frame.linenumber,
        "library": frame.library,
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
