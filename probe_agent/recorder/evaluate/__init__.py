"""Code that somebody typed, run in the target: names as in a debugger, output streamed, stoppable.

Runs on threads of ours; with `at_step` on the training thread, between two steps. The training thread pays for
the GIL that the code takes, and nothing when no code runs.
"""

from .evaluator import Evaluator

__all__ = ["Evaluator"]
