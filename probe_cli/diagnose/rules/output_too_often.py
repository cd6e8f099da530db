"""The training thread prints, logs or writes files for much of its time.

Every print and every call of a logger takes microseconds on a quiet terminal and milliseconds on a pipe, a network file
system or a tracking service. The stacks of the training thread, read from outside for two seconds, tell the lines.
"""

from __future__ import annotations

import re

from probe_cli.cluster.hang.text import is_library
from probe_cli.diagnose.rule import Rule, Threshold, of_each_rank
from probe_cli.diagnose.sampling import FORMATS, STEPS, Stack, look_for, suspected

__all__ = ["RULE"]

LIBRARY = re.compile(r"/logging/|/loguru/|/wandb/|/tensorboardX?/|/mlflow/|/tqdm/|/rich/|/json/|/csv\.py|/warnings\.py")
#: What a line that logs may call before: it computes.
COMPUTES = re.compile(r"/torchmetrics/|/sklearn/|/numpy/|/pandas/|/scipy/")
LINE = re.compile(
    r"\bprint\(|\.(write|writelines|flush|fsync|info|debug|warning|log_metrics?|add_scalars?)\(|\bjson\.dump\("
    r"|\b(self|log|logger|logging|writer|wandb|mlflow|run|experiment|tracker|accelerator)\.log\("  # not torch's
)


def _prints(stack: Stack) -> bool:
    for frame in stack.frames:
        if LIBRARY.search(frame.file) or FORMATS.search(frame.file) or (frame.source and LINE.search(frame.source)):
            return True
        if "/torch/" in frame.file or "/multiprocessing/" in frame.file or COMPUTES.search(frame.file):
            return False
        if not is_library(frame.file):
            return False  # the job's innermost line decides
    return False


RULE = Rule(
    "output-too-often",
    "speed",
    "Does the training thread print, log or write too often?",
    STEPS,
    of_each_rank(suspected),
    (
        Threshold("share", 0.15, "share of the training thread's time"),
        Threshold("steps", 20, "steps needed to judge"),
    ),
    explains=("python-bound",),
    look=look_for(
        _prints,
        "prints, logs or writes",
        (
            "do it every hundredth step, and on rank 0 only",
            "let a thread write: logging.handlers.QueueHandler, or the tracking service's own buffer",
            "do not flush or fsync each line",
        ),
        "if step % 100 == 0: ...",
    ),
    on_host=True,
)
