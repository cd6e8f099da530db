"""Ranks against GPUs, by a rule of `diagnose`."""

from probe_cli.diagnose.check import Check

__all__ = ["CHECK"]

CHECK = Check(
    "devices",
    "Has each rank a GPU of its own, at its clock and without errors?",
    rules=("ranks-exceed-gpus", "device-shared", "gpu-errors", "gpu-throttled", "device-out-of-memory"),
    fine="no GPU is shared, throttled, full or in error",
)
