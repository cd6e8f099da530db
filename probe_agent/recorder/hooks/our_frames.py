"""Keeps Dynamo from compiling our own functions: behind a graph break it tries every frame that the job's thread
enters, those of our hooks as well.

Runs once, on our own thread; under a millisecond. The mark is on our code objects alone, and goes with them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from ..source import Source as BaseSource

__all__ = ["Source"]


class Source(BaseSource):
    name = "our_frames"
    needs = ("torch",)

    def start(self) -> None:
        skip = _skip()
        ours = __name__.rpartition(".hooks.")[0]
        for name in [name for name in sys.modules if name == ours or name.startswith(ours + ".")]:
            for code in _codes(sys.modules[name]):
                skip(code)


def _skip() -> Callable[[CodeType], object]:
    """What tells Dynamo to run a code object as it is; what that calls is looked at again. A part of torch's binary."""
    eval_frame: Any = sys.modules["torch"]._C._dynamo.eval_frame
    if hasattr(eval_frame, "skip_code"):  # until torch 2.6
        skip: Callable[[CodeType], object] = eval_frame.skip_code
        return skip
    action = eval_frame._FrameAction
    strategy = eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
    return lambda code: eval_frame.set_code_exec_strategy(code, strategy)


def _codes(module: Any) -> Iterator[CodeType]:
    """The code of every function that is defined in a module, in its classes and in other functions."""
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else (value,)
        for member in members:
            member = getattr(member, "fget", None) or getattr(member, "__func__", member)
            code = getattr(member, "__code__", None)
            if isinstance(code, CodeType) and getattr(member, "__module__", None) == module.__name__:
                yield from _nested(code)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _nested(value)
