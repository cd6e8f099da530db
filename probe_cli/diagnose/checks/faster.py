"""Settings that would serve on this GPU, by a rule of `diagnose`."""

from probe_cli.diagnose.check import Check

__all__ = ["CHECK"]

CHECK = Check(
    "faster",
    "Are settings in use that serve on this GPU?",
    rules=("faster-settings",),
    fine="TF32 or bfloat16, a fused optimizer, pinned memory and torch.compile are in use",
)
