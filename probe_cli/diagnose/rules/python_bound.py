"""The job's own Python takes the step's time, and not the model.

A list of a million items that is shuffled in every step, nested lists that become a tensor, a loop over pixels. The
stacks of the training thread, read from outside, tell the lines: those count in which it holds the GIL and in which no
function of torch is. torch lets go of the GIL while it computes, so a line that calls an operator does not count.
"""

from __future__ import annotations

from probe_cli.diagnose.rule import Rule, Threshold, of_each_rank
from probe_cli.diagnose.sampling import STEPS, Stack, look_for, suspected

__all__ = ["RULE"]


def _is_python(stack: Stack) -> bool:
    return bool(stack.holds_gil) and not any("/torch/" in frame.file for frame in stack.frames)


RULE = Rule(
    "python-bound",
    "speed",
    "Does Python code of the job take most of the step?",
    STEPS,
    of_each_rank(suspected),
    (
        Threshold("share", 0.5, "share of the training thread's time"),
        Threshold("steps", 20, "steps needed to judge"),
    ),
    look=look_for(
        _is_python,
        "runs Python code of the job",
        (
            "do it once before the loop, or for many steps at a time",
            "use NumPy or torch in place of loops over items: torch.randint for a random batch, not a shuffled list",
            "move it to the data set, where the data loader's workers do it beside the step",
        ),
        "probe PID profile --cpu 5s",
    ),
    on_host=True,
)
