"""Callbacks around Dynamo's compilations, and code that Dynamo skips.

A hook that exists during a compilation becomes part of the compiled code, and its removal causes a recompile. So hooks
are removed before a compilation and put back after it: `AroundCompile`. Behind a graph break Dynamo tries to compile
every frame that the job's thread enters, the recorder's too: `skip` prevents that.

Runs on the thread that compiles, at the start and the end of a compilation; `watch` costs a search in a short list.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any, Callable

__all__ = ["AroundCompile", "has_compiled", "skip"]


def skip(code: CodeType) -> None:
    """Make Dynamo run a code object and the functions defined in it uncompiled; functions they call are not affected.

    The mark belongs to the code object and ends with it. Needs torch, whose C code keeps it.
    """
    eval_frame: Any = sys.modules["torch"]._C._dynamo.eval_frame
    if hasattr(eval_frame, "skip_code"):  # until torch 2.6
        eval_frame.skip_code(code)
    else:
        action = eval_frame._FrameAction
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT))
    for value in code.co_consts:
        if isinstance(value, CodeType):
            skip(value)


def has_compiled() -> bool:
    """Return whether Dynamo has compiled anything since its last reset."""
    return bool(getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COUNTER", 0))


class AroundCompile:
    """Callbacks of Dynamo: `leave` before a compilation and `come_back` after it; neither may raise."""

    def __init__(self, leave: Callable[[], None], come_back: Callable[[], None]) -> None:
        self._before: Callable[[Any], None] = lambda _: leave()
        self._after: Callable[[Any], None] = lambda _: come_back()

    def watch(self) -> None:
        """Register the callbacks and keep them across `torch._dynamo.reset()`.

        Dynamo may be imported later: call this again between steps.
        """
        handler = _handler()
        if handler is not None and self._before not in handler.start_callbacks:
            self._add(handler)
            clear = handler.__dict__.get("clear")
            if not isinstance(clear, _Clear):
                clear = handler.clear = _Clear(handler.clear)
            if self not in clear.kept:
                clear.kept.append(self)

    def forget(self) -> None:
        """Unregister the callbacks."""
        handler = _handler()
        if handler is None:
            return
        if self._before in handler.start_callbacks:
            handler.start_callbacks.remove(self._before)
            handler.end_callbacks.remove(self._after)
        clear = handler.__dict__.get("clear")
        if isinstance(clear, _Clear) and self in clear.kept:
            clear.kept.remove(self)
            if not clear.kept:
                del handler.clear

    def _add(self, handler: Any) -> None:
        handler.start_callbacks.append(self._before)
        handler.end_callbacks.append(self._after)


class _Clear:
    """Replacement of the `clear` of Dynamo's callbacks: a reset in the middle of a step keeps the recorder's."""

    def __init__(self, original: Callable[[], None]) -> None:
        self._original = original
        self.kept: list[AroundCompile] = []

    def __call__(self) -> None:
        self._original()
        for aside in self.kept:
            aside._add(_handler())


def _handler() -> Any:
    return getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
