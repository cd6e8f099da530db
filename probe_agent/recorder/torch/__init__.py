"""What the recorder needs of the target's torch, which is looked up in `sys.modules` and never imported."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__all__ = ["host_number", "is_watched", "loaded"]


def loaded(name: str) -> ModuleType | None:
    """Return a module that the target has finished importing, torch's or another one; None otherwise."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return None if module is None or getattr(spec, "_initializing", False) else module


def is_watched(torch: Any) -> bool:
    """Return whether the job has a dispatch or function mode active on this thread, which would see our operators."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack())


def host_number(value: object) -> float | None:
    """Return a number of the host, also one in a tensor of one element; None for anything else.

    A tensor on a device would synchronise, one of a subclass may need the other ranks, and a mode of the job would see
    the operator.
    """
    torch: Any = loaded("torch")
    if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
        tensor: Any = value
        is_one = tensor.is_cpu and tensor.numel() == 1 and not tensor.dtype.is_complex and not is_watched(torch)
        return float(tensor.item()) if is_one else None
    return float(value) if isinstance(value, (int, float)) else None
