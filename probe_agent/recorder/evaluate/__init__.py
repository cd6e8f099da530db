"""Evaluation of a user's code in the target: names resolved as in a debugger, output streamed, stoppable.

Runs on threads of the recorder; with `at_step` on the training thread, between two steps. The training thread pays for
the GIL that the code takes, and nothing while no code runs.
"""

from .evaluator import Evaluator

__all__ = ["Evaluator"]
