"""Attach from outside: gets the recorder into a running process without compiler, debugger or package in it.

Runs in the attaching process.
"""

from .attach import Attached, attach
from .native import NativeStacks, read_native_stacks
from .nudge import wake
from .preflight import Check, examine
from .py_spy import Sampler, holder_text, read_stacks

__all__ = [
    "Attached",
    "Check",
    "NativeStacks",
    "Sampler",
    "attach",
    "examine",
    "holder_text",
    "read_native_stacks",
    "read_stacks",
    "wake",
]
