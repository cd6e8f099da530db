"""Distinction between exceptions of the job's signal handlers and those of the code that the signal interrupted.

At-step code runs on the training thread, where Python calls the job's handlers between two bytecodes: Ctrl-C there is
meant for the job, `raise KeyboardInterrupt` in the code is not. Runs once per exception.
"""

from __future__ import annotations

import opcode
import signal
from types import CodeType
from typing import Any

__all__ = ["is_from_signal_handler"]

_RAISES = {opcode.opmap[name] for name in ("RAISE_VARARGS", "RERAISE") if name in opcode.opmap}


def is_from_signal_handler(error: BaseException) -> bool:
    """Return whether a signal handler of the job raised `error`, so that the job must see it."""
    entry = error.__traceback__
    if entry is None:
        return False
    handlers = _handlers()
    while True:
        if entry.tb_frame.f_code in handlers:
            return True
        if entry.tb_next is None:
            break
        entry = entry.tb_next
    # Python's own handler of Ctrl-C is written in C and leaves no frame: the innermost frame executes no `raise`.
    raised = entry.tb_frame.f_code.co_code[entry.tb_lasti] in _RAISES
    return type(error) is KeyboardInterrupt and not raised


def _handlers() -> set[CodeType]:
    codes: set[CodeType] = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        function = getattr(handler, "__func__", getattr(handler, "func", handler))  # methods, functools.partial
        code = getattr(function, "__code__", None) or getattr(type(function).__dict__.get("__call__"), "__code__", None)
        if isinstance(code, CodeType):
            codes.add(code)
    return codes
