"""Calls of CUDA on a thread of the recorder while another thread of the job captures a graph.

In the mode that torch captures in, asking another thread's event whether it is over, or waiting for the device, is an
error that ends the capture. A thread whose own mode is "relaxed" may; torch sets it on its NCCL watchdog for this
reason. The mode belongs to the thread, so the job's threads keep theirs. About 1 µs.
"""

from __future__ import annotations

import os
from typing import Any

from . import loaded

__all__ = ["allow_captures_elsewhere"]

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_DRIVER = "libcuda.so.1"


def allow_captures_elsewhere() -> None:
    """Let this thread, one of the recorder, call CUDA while a thread of the job captures. Nothing without CUDA."""
    cuda: Any = loaded("torch.cuda")
    ctypes: Any = loaded("ctypes")
    if cuda is None or ctypes is None or not cuda.is_initialized():
        return
    try:
        driver = ctypes.CDLL(_DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))
    except (OSError, AttributeError):
        return  # another vendor's torch, or a driver older than graphs
