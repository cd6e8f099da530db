"""Device of the target: memory in use, device times, values of tensors, and whether torch is compiling.

Runs on the training thread and never waits for the device: CUDA events and copies to pinned memory are enqueued, and
read later, once `query()` says that they are done.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from resource import RUSAGE_SELF, getrusage
from types import ModuleType
from typing import Any

from ..ring.table import MIB, NULL_FLOAT
from . import is_watched

__all__ = ["Device", "Later", "LaterBytes"]

_PAGES = os.sysconf("SC_PAGE_SIZE") / MIB


class Later:
    """A number that is still being copied from the device; `value` is None until it has arrived."""

    def __init__(self, host: Any, event: Any) -> None:
        self._host = host
        self._event = event

    @property
    def value(self) -> float | None:
        return float(self._host) if self._event.query() else None


class LaterBytes:
    """Bytes that are still being copied from the device; `value` is None until they have arrived."""

    def __init__(self, host: Any, event: Any) -> None:
        self._host = host
        self._event = event

    @property
    def value(self) -> bytes | None:
        return bytes(self._host.tolist()) if self._event.query() else None


class Device:
    """The device of this process; `memory` is (allocated, reserved) in MiB as of the last `refresh`."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch: Any = torch
        self.is_compiling: Any = torch.compiler.is_compiling
        self._plain = (torch.Tensor, torch.nn.Parameter)
        self.has_gpu = False
        #: Number of the device that the training thread uses; None until a step has ended there.
        self._index: int | None = None
        self.memory: tuple[float, float] = (NULL_FLOAT, NULL_FLOAT)
        #: Peak in MiB of memory in tensors, without a GPU of resident memory, as of the last `refresh`.
        self.peak = NULL_FLOAT
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self.refresh()

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._statm)

    def rss(self) -> float:
        """Return the resident memory of the process in MiB; one system call, 2 to 7 µs."""
        return int(os.pread(self._statm, 64, 0).split()[1]) * _PAGES

    def refresh(self) -> None:
        """Update whether the job uses a GPU, and the memory of the device of the training thread."""
        cuda = self._torch.cuda
        self.has_gpu = bool(cuda.is_initialized())
        if not self.has_gpu:
            self.peak = getrusage(RUSAGE_SELF).ru_maxrss / 1024
        elif self._index is not None:
            stats = cuda.memory_stats_as_nested_dict(self._index)
            allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
            self.memory = (allocated["current"] / MIB, reserved["current"] / MIB)
            self.peak = allocated["peak"] / MIB

    def note_current(self) -> None:
        """Note the device that the training thread uses, which calls this: for every other thread it is cuda:0."""
        index = self._torch.cuda.current_device()
        if index != self._index:
            self._index = index
            self.refresh()

    def allocated(self) -> float:
        """Return the memory in use in MiB: of the device if there is one, otherwise resident memory."""
        if self.has_gpu:
            # As torch.cuda.memory_allocated(), without formatting a hundred other numbers.
            stats = self._torch.cuda.memory_stats_as_nested_dict()
            return float(stats["allocated_bytes"]["all"]["current"]) / MIB
        return self.rss()

    def is_capturing(self) -> bool:
        """Return whether a CUDA graph is being captured: nothing else may be enqueued then."""
        return self.has_gpu and bool(self._torch.cuda.is_current_stream_capturing())

    def autocast(self, kind: str) -> str | None:
        """Return the type in which the calling thread computes on this kind of device, cuda or cpu, if not in its own:
        the autocast that is on here."""
        torch = self._torch
        try:
            return str(torch.get_autocast_dtype(kind)).partition(".")[2] if torch.is_autocast_enabled(kind) else None
        except (AttributeError, TypeError):  # torch asks by kind of device since 2.4
            return "float16" if kind == "cuda" and torch.is_autocast_enabled() else None

    def is_tensor(self, value: object) -> bool:
        """Return whether `value` is a tensor, of torch's own class or a subclass."""
        return isinstance(value, self._torch.Tensor)

    def is_plain(self, value: object) -> bool:
        """Return whether `value` is a tensor or parameter of torch's own class, not of a subclass."""
        return type(value) in self._plain

    def is_watched(self) -> bool:
        """Return whether the job has a dispatch or function mode active, which would see the recorder's operators."""
        return is_watched(self._torch)

    def mark(self) -> Any:
        """Return an event in the device's stream, to be compared with another one; None on a CPU and in a capture."""
        if not self.has_gpu or self.is_capturing():
            return None
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def is_elsewhere(self, mark: Any, device: Any) -> bool:
        """Return whether a mark is on another GPU than `device`: it says nothing about work there."""
        return bool(device.type == "cuda" and mark.device != device)

    def between(self, begin: Any, end: Any) -> float | None:
        """Return the seconds between two marks; None until the device has reached both."""
        if not (end.query() and begin.query()):  # both: they may be on two streams
            return None
        try:
            return float(begin.elapsed_time(end)) * 1e-3
        except (RuntimeError, ValueError):
            return NULL_FLOAT  # on two devices

    def number(self, value: object) -> float | Later:
        """Return the number in `value`, a Python number or a tensor of one element, without waiting for a device.

        NULL for a subclass of tensor: reading one may take communication between ranks.
        """
        if isinstance(value, (int, float)):
            return float(value)
        tensor: Any = value
        if type(value) not in self._plain or self.is_watched() or tensor.numel() != 1 or tensor.dtype.is_complex:
            return NULL_FLOAT
        if tensor.is_cpu:
            return float(tensor.item())
        if tensor.device.type != "cuda" or self.is_capturing():
            return NULL_FLOAT
        # In its own type: a conversion would allocate on the device.
        host = self._torch.empty((), dtype=tensor.dtype, device="cpu", pin_memory=True)
        host.copy_(tensor.detach().reshape(()), non_blocking=True)
        event = self._torch.cuda.Event()
        event.record(self._torch.cuda.current_stream(tensor.device))  # its device need not be the current one
        return Later(host, event)

    def first_bytes(self, tensors: Sequence[Any], num: int) -> LaterBytes:
        """Copy at most `num` first bytes of each of these tensors, which are dense and on one GPU, without waiting for
        it and without allocating there."""
        torch = self._torch
        host = torch.zeros((len(tensors), num), dtype=torch.uint8, pin_memory=True)
        with torch.no_grad():
            for row, tensor in zip(host, tensors):
                first = tensor.detach().view(-1)[: num // tensor.element_size()].view(torch.uint8)
                row[: len(first)].copy_(first, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(tensors[0].device))
        return LaterBytes(host.view(-1), event)

    def grad_norm(self, optimizer: Any) -> float | Later:
        """Return the 2-norm of all gradients that the optimizer is about to use; NULL if it would take communication
        between ranks (sharded gradients) or a second copy (sparse ones)."""
        torch = self._torch
        grads: list[Any] = [
            parameter.grad
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        if not grads or self.is_capturing() or self.is_watched():
            return NULL_FLOAT
        first = grads[0]
        for grad in grads:
            if type(grad) is not torch.Tensor or grad.layout is not torch.strided or grad.device != first.device:
                return NULL_FLOAT
        with torch.no_grad():
            return self.number(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads))))
