"""Out of Dynamo's way.

A hook of ours that is there while something is compiled becomes part of it, and when it goes there is a recompile. So
our hooks go before a compilation and come back after it: `Aside`. And behind a graph break Dynamo tries to compile
every frame that the job's thread enters, ours too: `skip` tells it not to.

Runs on the thread that compiles, at the beginning and the end of a compilation; watching costs a look at a list.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any, Callable

__all__ = ["Aside", "has_compiled", "skip"]


def skip(code: CodeType) -> None:
    """Have Dynamo run a code object as it is, and the functions made in it; what these call is looked at again.

    The mark is on the code object alone, and goes with it. Needs torch, of which it is a part in C.
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
    """Whether Dynamo has compiled anything; since its last reset, where it counts anew."""
    return bool(getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COUNTER", 0))


class Aside:
    """Has Dynamo call `leave` before it compiles and `come_back` after it; neither may raise."""

    def __init__(self, leave: Callable[[], None], come_back: Callable[[], None]) -> None:
        self._before: Callable[[Any], None] = lambda _: leave()
        self._after: Callable[[Any], None] = lambda _: come_back()

    def watch(self) -> None:
        """From now on, also after Dynamo's reset. It is imported late: call this again between steps."""
        handler = _handler()
        if handler is not None and self._before not in handler.start_callbacks:
            self._add(handler)
            clear = handler.__dict__.get("clear")
            if not isinstance(clear, _Clear):
                clear = handler.clear = _Clear(handler.clear)
            if self not in clear.kept:
                clear.kept.append(self)

    def forget(self) -> None:
        """No more."""
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
    """Stands for the `clear` of Dynamo's callbacks: a reset in the middle of a step forgets all of them but ours."""

    def __init__(self, original: Callable[[], None]) -> None:
        self._original = original
        self.kept: list[Aside] = []

    def __call__(self) -> None:
        self._original()
        for aside in self.kept:
            aside._add(_handler())


def _handler() -> Any:
    return getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
