"""Versions, settings and code of the ranks, by a rule of `diagnose`."""

from probe_cli.diagnose.check import Check

__all__ = ["CHECK"]

CHECK = Check(
    "ranks",
    "Do all ranks run with the same versions, settings and code?",
    rules=("ranks-differ",),
    fine="all ranks have the same versions, settings and code",
)
