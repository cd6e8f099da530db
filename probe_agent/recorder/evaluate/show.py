"""Text of results and exceptions of evaluated code, as at a Python prompt, without frames of the recorder.

Runs on the thread of the code, inside the fence: a slow `repr` can be stopped.
"""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

__all__ = ["FILE_NAME", "exception_text", "forget_source", "place", "remember_source", "result_text"]

FILE_NAME = "<eval>"
MAX_RESULT_CHARS = 64 << 10
#: Common prefix of this package's files, on disk or in the payload.
_PACKAGE_FILES = sys._getframe().f_code.co_filename.rpartition("evaluate")[0] + "evaluate"


def result_text(value: object, note: Callable[[str], object]) -> str:
    """Return `repr(value)`, truncated if it is very long."""
    text = repr(value)
    if len(text) > MAX_RESULT_CHARS:
        note(f"the result is truncated: its repr has {len(text):,} characters, {MAX_RESULT_CHARS:,} are shown")
        text = text[:MAX_RESULT_CHARS]
    return text


def remember_source(file: str, code: str) -> None:
    """Make the lines of `file` appear in tracebacks, the job's included."""
    for cache in _caches():
        cache[file] = (len(code), None, [line + "\n" for line in code.splitlines()], file)


def forget_source(file: str) -> None:
    """Forget the source of `file`, whose code cannot run any more."""
    for cache in _caches():
        cache.pop(file, None)


def _caches() -> list[dict[str, Any]]:
    """Return the caches of the recorder's linecache and the job's, which may be the same."""
    return [linecache.cache, getattr(sys.modules.get("linecache"), "cache", {})]


def exception_text(error: BaseException, file: str) -> str:
    """Return the traceback from the evaluated code on. `file` is its internal name; users see `<eval>`."""
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code.co_filename != file:
        entry = entry.tb_next  # the recorder's; if no entry is left, the code did not compile
    shown = traceback.TracebackException(type(error), error, entry)
    _clean(shown, file)
    return "".join(shown.format())


def place(error: BaseException, file: str) -> str:
    """Return where `error` was raised: `f() at <eval>:3`."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame)]
    if not frames:
        return FILE_NAME
    name = FILE_NAME if frames[-1].filename == file else os.path.basename(frames[-1].filename)
    where = f"{name}:{frames[-1].lineno}"
    return where if frames[-1].name == "<module>" else f"{frames[-1].name}() at {where}"


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_PACKAGE_FILES)


def _clean(shown: Any, file: str) -> None:
    """Remove the recorder's frames from an exception and its causes, and name the code as users know it."""
    if shown is None:
        return
    shown.stack[:] = [frame for frame in shown.stack if not _is_ours(frame)]
    for frame in shown.stack:
        if frame.filename == file:
            frame.filename = FILE_NAME
    if getattr(shown, "filename", None) == file:  # a SyntaxError
        shown.filename = FILE_NAME
    _clean(shown.__cause__, file)
    _clean(shown.__context__, file)
    for inner in getattr(shown, "exceptions", None) or ():
        _clean(inner, file)
