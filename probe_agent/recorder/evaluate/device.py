"""Eval code on our thread works on the job's CUDA device, not on device 0.

The current device is a matter of the thread. Without this, `torch.zeros(1, device="cuda")` on rank 3 would make a
context of some hundred MiB on device 0. Runs once an eval: some 100 µs when CUDA is in use, nothing when not.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["follow_job"]


def follow_job() -> None:
    """Make the only device on which the job holds memory the current one of this thread."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized() or cuda.device_count() < 2:
        return
    used = [device for device in range(cuda.device_count()) if cuda.memory_reserved(device)]
    if len(used) == 1:
        cuda.set_device(used[0])
