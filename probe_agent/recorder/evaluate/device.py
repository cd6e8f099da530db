"""CUDA device of evaluated code: the job's, not device 0.

The current device belongs to the thread. Without this, `torch.zeros(1, device="cuda")` on rank 3 would create a context
of some hundred MiB on device 0. Runs once per evaluation: about 100 µs if CUDA is in use, otherwise nothing.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["follow_job"]


def follow_job() -> None:
    """Select the device on which the job holds memory for this thread, if there is exactly one."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized() or cuda.device_count() < 2:
        return
    used = [device for device in range(cuda.device_count()) if cuda.memory_reserved(device)]
    if len(used) == 1:
        cuda.set_device(used[0])
