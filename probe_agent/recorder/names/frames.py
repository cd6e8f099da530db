"""Frames of the job's threads and their local variables, read without keeping anything alive.

Runs on a thread of the recorder under the GIL: frames stand still only until it is released. A frame that is held keeps
its locals alive (activations, a whole batch), so frames are fetched for one lookup and dropped after it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from types import CodeType, FrameType
from typing import Any

from ..guest.walk import frames_of, variables
from .cells import cell_name

__all__ = ["CO_OPTIMIZED", "defines", "is_user", "is_user_file", "library_frames", "read", "user_frames", "where"]

#: Flag of the code of a function, whose locals are not those of a module.
CO_OPTIMIZED = 1
_PACKAGE = __name__.rpartition(".names.")[0]
_STDLIB = os.path.dirname(os.__file__) + os.sep
#: Before Python 3.13 `frame.f_locals` fills a dict that stays with the frame.
_SNAPSHOTS = sys.version_info < (3, 13)


def user_frames(ident: int, runner: CodeType) -> list[FrameType]:
    """Return the frames of the job's own code on thread `ident`, innermost first; if all are of libraries, all of them.

    Frames inside `runner`, which runs at-step code on that thread, belong to the evaluated code and are left out.
    """
    frames = _frames(ident, runner)
    return [frame for frame in frames if is_user(frame)] or [one for one in frames if not _is_machinery(one)] or frames


def library_frames(ident: int, runner: CodeType) -> list[FrameType]:
    """Return the frames of libraries nearest to the job's innermost frame: first those it called, then its callers.

    Frames of torch and the standard library are left out: `loss` does not mean the one in `Adam.step`, which is None.
    """
    frames = _frames(ident, runner)
    own = [at for at, frame in enumerate(frames) if is_user(frame)]
    if not own:
        return []
    nearest = [*reversed(frames[: own[0]]), *frames[own[0] :]]
    return [frame for frame in nearest if not is_user(frame) and not _is_machinery(frame)]


def _is_machinery(frame: FrameType) -> bool:
    """Return whether the frame belongs to torch or the standard library."""
    is_torchs = str(frame.f_globals.get("__name__")).partition(".")[0] == "torch"
    file = frame.f_code.co_filename
    return is_torchs or (file.startswith(("<frozen", _STDLIB)) and "-packages" not in file)


def _frames(ident: int, runner: CodeType) -> list[FrameType]:
    """Return all frames but the recorder's, innermost first."""
    frames: list[FrameType] = []
    for frame in frames_of(ident):
        if frame.f_code is runner:
            frames.clear()
        elif not _is_ours(frame):
            frames.append(frame)
    return frames


def is_user(frame: FrameType) -> bool:
    """Return whether the frame runs the job's own code, not the standard library or an installed package."""
    if not is_user_file(frame.f_code.co_filename):
        return False
    return str(frame.f_globals.get("__name__")).partition(".")[0] != "torch"  # a torch built in place


def is_user_file(file: str) -> bool:
    """Return whether a file is neither of the standard library nor of an installed package."""
    return not (file.startswith(("<frozen", _STDLIB)) or "site-packages" in file or "dist-packages" in file)


def _is_ours(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__"))
    return name == _PACKAGE or name.startswith(_PACKAGE + ".")


def where(frame: FrameType, line: int | None = None) -> str:
    """Return the frame's place: `main() at train.py:41`; of a library `f() at pkg/file.py:41, in a library frame`.

    The line is the one that the frame runs, unless another one is given.
    """
    code = frame.f_code
    line = line or frame.f_lineno or code.co_firstlineno
    if not is_user(frame):
        file = os.sep.join(code.co_filename.split(os.sep)[-2:])
        return f"{getattr(code, 'co_qualname', code.co_name)}() at {file}:{line}, in a library frame"
    cell = cell_name(code.co_filename)
    place = f"{os.path.basename(code.co_filename)}:{line}" if cell is None else f"{cell}, line {line}"
    return place if code.co_name == "<module>" else f"{code.co_name}() at {place}"


def defines(frame: FrameType, name: str) -> bool:
    """Return whether `name` can be a local variable of the frame; cheap, touches no value."""
    code = frame.f_code
    if code.co_flags & CO_OPTIMIZED:
        return name in code.co_varnames or name in code.co_cellvars or name in code.co_freevars
    return name in variables(frame)


def read(frame: FrameType, names: Collection[str] | None = None) -> dict[str, Any]:
    """Return the current values of the frame's locals: of `names`, or of all."""
    found: Any = variables(frame)
    values = {name: found[name] for name in (list(found) if names is None else names) if name in found}
    # A snapshot known only to the frame and the recorder is emptied: it would keep tensors alive until the frame ends.
    # A snapshot that the job got from locals() is left alone.
    if _SNAPSHOTS and frame.f_code.co_flags & CO_OPTIMIZED and sys.getrefcount(found) <= 3:
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            found.pop(name, None)
    return values
