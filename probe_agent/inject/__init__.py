"""Gets the recorder into a running process from outside: no compiler, no debugger, no package in the target."""

from .attach import Attached, attach
from .cpu_profile import Sampler
from .nudge import wake
from .preflight.checks import Check, examine
from .py_spy import holder_text, read_stacks

__all__ = ["Attached", "Check", "Sampler", "attach", "examine", "holder_text", "read_stacks", "wake"]
