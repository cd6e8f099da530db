"""Gets the recorder into a running process from outside: no compiler, no debugger, no package in the target."""

from .attach import Attached, attach
from .cpu_profile import Sampler
from .nudge import wake
from .preflight.checks import Check, examine
from .py_spy import read_stacks, told

__all__ = ["Attached", "Check", "Sampler", "attach", "examine", "read_stacks", "told", "wake"]
