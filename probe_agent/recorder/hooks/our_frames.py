"""Marks that keep Dynamo from compiling the recorder's functions.

Behind a graph break Dynamo tries to compile every frame that the job's thread enters, those of the hooks included. Runs
once, on the recorder's thread: under 1 ms.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

from ..source import Source as BaseSource
from ..torch.dynamo import skip

__all__ = ["Source"]


class Source(BaseSource):
    name = "our_frames"
    needs = ("torch",)

    def start(self) -> None:
        ours = __name__.rpartition(".hooks.")[0]
        for name in [name for name in list(sys.modules) if name == ours or name.startswith(ours + ".")]:
            for code in _codes(sys.modules[name]):
                skip(code)


def _codes(module: Any) -> Iterator[CodeType]:
    """Yield the code of every function and method that is defined in a module."""
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else (value,)
        for member in members:
            member = getattr(member, "fget", None) or getattr(member, "__func__", member)
            code = getattr(member, "__code__", None)
            if isinstance(code, CodeType) and getattr(member, "__module__", None) == module.__name__:
                yield code
