"""Checksums of the parameters on some steps, for comparing ranks that hold the same model: `python.replicas`.

Runs on the training thread of a job of several ranks, after the optimizer's step of a sampled step, and of the first
that ends in each four seconds of the clock: where steps are counted from the attach, those that are sampled are other
ones on each rank, and these are mostly the same. The first 64 bytes of up to 32 parameters are read, 2 µs each on a CPU
(benchmarks.hooks). On a GPU those of up to 8 are copied; nothing waits for it and nothing is allocated there.
Parameters of a sharded model, which are no plain tensors, are left out.
"""

from __future__ import annotations

import sys
from time import time_ns
from typing import Any
from zlib import crc32

from ..job.rank import rank_and_size
from ..ring.table import Column, Table
from ..source import Awaited, Recorder
from ..source import Source as BaseSource
from ..torch.device import LaterBytes

__all__ = ["Replicas", "Source"]

NUM_BYTES, MAX_PARAMETERS = 64, 32
MAX_ON_DEVICE = 8
#: Rows whose checksum is still on the device; the oldest are dropped.
MAX_WAITING = 100
#: Seconds of the clock in which one step is noted even if it is not sampled.
PERIOD_NS = 4_000_000_000


class Replicas(Table):
    name = "python.replicas"
    doc = (
        "One row per sampled step of a job of several ranks, and for the first step in each four seconds of the clock:"
        " a checksum of its parameters after the step. Ranks that hold the same weights have the same."
    )
    capacity = 8_192
    columns = (
        Column("step", "int", "", "number of the step"),
        Column("ts", "time", "UTC", "end of the step"),
        Column("parameters", "int", "", "parameters of which a part was read"),
        Column("checksum", "float", "", "checksum of these parts"),
    )


class Source(BaseSource):
    name = "replicas"
    needs = ("torch", "torch.optim.optimizer", "torch.distributed")
    tables = (Replicas,)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._buffer = recorder.buffer(Replicas)
        self._step = recorder.step
        self._cost = recorder.cost(self.name)
        self._is_on = False
        self._waiting: list[tuple[int, int, int, Any]] = []
        self._period = 0
        #: One bound method object, so that it can be found and removed.
        self._ending = self._at_end

    def tick(self) -> None:
        if not self._is_on and rank_and_size()[1] > 1:
            self._is_on = True
            self._step.ending.append(self._ending)

    def awaited(self) -> dict[str, Awaited]:
        if self.recorder.has_rows(Replicas):
            return {}
        why = "the job has one rank" if not self._is_on else "no step has been sampled since the recorder started"
        return {Replicas.name: Awaited(why, "no action needed" if not self._is_on else "wait for the job's next steps")}

    def stop(self) -> None:
        if self._ending in self._step.ending:
            self._step.ending.remove(self._ending)
        self._is_on = False
        self._waiting.clear()

    # On the training thread.

    def _at_end(self) -> None:
        step = self._step
        if not step.is_one or not step.is_training:
            return
        last, self._period = self._period, time_ns() // PERIOD_NS
        if not step.sampled and last == self._period:
            return
        try:
            self._note()
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise

    def _note(self) -> None:
        device = self.recorder.device
        if device.is_capturing():
            return
        self._arrived()
        parameters = [one for one in self._parameters() if device.is_plain(one) and _is_here(one)]
        on_host = [one for one in parameters if one.is_cpu]
        if on_host:
            chosen = _spread(on_host, MAX_PARAMETERS)
            self._row(len(chosen), float(_checksum(chosen)))
        elif parameters and not device.is_watched():
            on_one = [one for one in parameters if one.is_cuda and one.device == parameters[0].device]
            chosen = _spread(on_one, MAX_ON_DEVICE)
            if chosen:
                self._row(len(chosen), device.first_bytes(chosen, NUM_BYTES))

    def _parameters(self) -> list[Any]:
        optimizers = self.recorder.seen.optimizers.alive()
        groups = getattr(optimizers[0], "param_groups", ()) if optimizers else ()
        return [parameter for group in groups for parameter in group.get("params", ())]

    def _row(self, num: int, checksum: float | LaterBytes) -> None:
        self._waiting.append((self._step.number, time_ns() // 1000, num, checksum))
        del self._waiting[:-MAX_WAITING]
        self._arrived()

    def _arrived(self) -> None:
        """Write the rows whose checksum is on the host."""
        while self._waiting:
            *row, checksum = self._waiting[0]
            if isinstance(checksum, LaterBytes):
                read = checksum.value
                if read is None:
                    return
                checksum = float(crc32(read))
            self._waiting.pop(0)
            self._buffer.rows.append((*row, checksum))


def _is_here(parameter: Any) -> bool:
    """Return whether a parameter's values are in memory: a sharded model releases the storage and keeps the shape."""
    if not parameter.numel() or parameter.is_meta or parameter.layout is not sys.modules["torch"].strided:
        return False
    end = (parameter.storage_offset() + parameter.numel()) * parameter.element_size()
    return bool(parameter.is_contiguous() and parameter.untyped_storage().nbytes() >= end and parameter.data_ptr())


def _spread(parameters: list[Any], most: int) -> list[Any]:
    if len(parameters) <= most:
        return parameters
    return [parameters[round(at * (len(parameters) - 1) / (most - 1))] for at in range(most)]


def _checksum(parameters: list[Any]) -> int:
    """Return a checksum of the first bytes of tensors on the host, whose owner keeps them alive."""
    import ctypes  # here: torch has loaded it, and a process without torch does not need it

    total = 0
    for parameter in parameters:
        size = min(NUM_BYTES, parameter.numel() * parameter.element_size())
        total = crc32(ctypes.string_at(parameter.data_ptr(), size), total)
    return total
