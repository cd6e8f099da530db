"""The training thread reads values of tensors again and again: `.item()`, `.tolist()`, `.cpu()`, `float(loss)`.

On a GPU each of them waits until all that was launched before is done, and the device idles while Python goes on. On a
CPU a loop over single elements costs more than the model. They are not counted in the job (docs/decisions/0007); the
stacks of the training thread, read from outside for two seconds, tell the lines that it is found in.
"""

from __future__ import annotations

import re

from probe_cli.diagnose.rule import Rule, Threshold, of_each_rank
from probe_cli.diagnose.sampling import FORMATS, STEPS, Stack, look_for, suspected

__all__ = ["RULE"]

LINE = re.compile(
    r"\.(item|tolist|cpu|numpy|nonzero)\(|\bsynchronize\(|\b(float|int|bool)\([\w.]*(loss|grad|norm|acc)\w*[\[\)]"
    r"|\.to\([\"']cpu|isnan\(.*\.(any|all)\(|isfinite\(.*\.(any|all)\("
)


def _reads(stack: Stack) -> bool:
    """Return whether the innermost line reads a value, and not to print it."""
    prints = any(FORMATS.search(frame.file) for frame in stack.frames)
    return not prints and any(frame.source and LINE.search(frame.source) for frame in stack.frames[:1])


RULE = Rule(
    "values-read-back",
    "speed",
    "Does the training thread read values of tensors too often?",
    STEPS,
    of_each_rank(suspected),
    (
        Threshold("share", 0.15, "share of the training thread's time"),
        Threshold("steps", 20, "steps needed to judge"),
    ),
    explains=("python-bound",),
    look=look_for(
        _reads,
        "reads values of tensors",
        (
            "keep running sums as tensors on the device, and read them every hundredth step",
            "compute metrics over whole tensors, not element by element",
            "see what waits for the device: `probe PID profile --steps 3`",
        ),
        "total += loss.detach(); if step % 100 == 0: print(total.item() / 100)",
    ),
    on_host=True,
)
