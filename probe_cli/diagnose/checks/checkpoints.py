"""Checkpoints that the job has saved or loaded, by rules of `diagnose`."""

from probe_cli.diagnose.check import Check

__all__ = ["CHECK"]

CHECK = Check(
    "checkpoints",
    "Are checkpoints complete, do they load, and do they stop the job for long?",
    rules=(
        "checkpoint-failed",
        "checkpoint-incomplete",
        "checkpoint-one-rank",
        "checkpoint-slow",
        "load-failed",
        "resume-changed",
    ),
    fine="those so far were saved or loaded without an error, with the optimizer's state, and soon",
)
