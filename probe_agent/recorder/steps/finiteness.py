"""Finiteness of the values of tensors: read at once on a CPU, later on another device.

Runs on the training thread. On a CPU the lowest and the highest value are read within a budget a step (1.1 µs for 64
values, 0.4 ms for a million). On a device the two are enqueued, copied when the step has ended, and read once they have
arrived: nothing waits for the device, and no tensor of the job is kept.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from time import perf_counter_ns
from typing import Any
from weakref import ref

from ..torch.device import Device
from ..torch.values import Arriving, Values
from .watched_step import FINITE, INF, MINUS_INF, NAN

__all__ = ["Finiteness", "Seen", "Sent", "status_of"]

Seen = tuple[int, tuple[int, ...]]  # status, and numbers of what is still on the device
Sent = list[tuple[list[int], Arriving]]  # those numbers, and what the device sends for them


class Finiteness:
    """Looks at the tensors of one step, each of them once; `begin` starts the next step."""

    def __init__(self, device: Device, budget_ms: float) -> None:
        torch: Any = sys.modules["torch"]
        self._device = device
        self._budget_ns = int(budget_ms * 1e6)
        self._spent = 0
        self._values = Values(device)
        self._aminmax = torch.aminmax
        self._fast = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
        #: Tensors looked at by id: a weak reference, the version, and what was seen.
        self._known: dict[int, tuple[Any, int, Seen]] = {}
        self._lows: list[Any] = []
        self._highs: list[Any] = []
        #: Looks of this step that the budget did not allow.
        self.num_unseen = 0
        #: Tensors that cannot be read.
        self.num_unreadable = 0

    def begin(self) -> None:
        """Forget the step before."""
        self._known.clear()
        self._lows.clear()
        self._highs.clear()
        self._spent = self.num_unseen = 0

    def look_at(self, tensors: Iterable[Any]) -> Seen:
        """Return the worst status of the tensors, within the budget."""
        status = FINITE
        pending: tuple[int, ...] = ()
        if self._spent > self._budget_ns:
            self.num_unseen += 1
            return status, pending
        began = perf_counter_ns()
        for tensor in tensors:
            one, numbers = self.look(tensor)
            status = max(status, one)
            pending += numbers
        self._spent += perf_counter_ns() - began
        return status, pending

    def look(self, tensor: Any) -> Seen:
        """Return the status of one tensor, whatever the budget."""
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1] == tensor._version:
            return known[2]
        value = tensor.detach()
        if not (value.is_cpu and self._device.is_plain(value) and value.dtype in self._fast):
            value = self._values.readable(value)
            if isinstance(value, str):
                self.num_unreadable += 1
                return FINITE, ()
        elif value.layout is not self._values.strided or self._values.is_wrapped(value):
            value = None
        if value is None or not value.numel():
            return FINITE, ()
        low, high = self._aminmax(value)
        if value.is_cpu:
            seen: Seen = (status_of(low.item(), high.item()), ())
        else:
            seen = (FINITE, (len(self._lows),))
            self._lows.append(low)
            self._highs.append(high)
        if not tensor.is_inference():
            self._known[id(tensor)] = ref(tensor), tensor._version, seen
        return seen

    def sent(self) -> Sent:
        """Have the devices copy what was enqueued, one copy for each device and type."""
        alike: dict[Any, list[int]] = {}
        for number, low in enumerate(self._lows):
            alike.setdefault((low.device, low.dtype), []).append(number)
        torch = sys.modules["torch"]
        sent = []
        for numbers in alike.values():
            ends = [end for number in numbers for end in (self._lows[number], self._highs[number])]
            sent.append((numbers, Arriving(torch, ends)))
        return sent


def status_of(low: float, high: float) -> int:
    """Return the status of values between these two."""
    if low != low or high != high:
        return NAN
    if high == math.inf:
        return INF
    return MINUS_INF if low == -math.inf else FINITE
