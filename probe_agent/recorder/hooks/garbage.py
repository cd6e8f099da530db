"""Pauses of Python's garbage collector: `python.gc`.

Runs on the thread that collects, with the GIL: a clock read at the start and one at the end, and a list append if the
collection took 0.5 ms. Most collections are of the youngest objects and take microseconds.

Python prints and drops what is raised inside a callback of the collector. So an exception of a signal handler of the
job is lost when the signal comes in the microsecond in which this one runs on the main thread.
"""

from __future__ import annotations

import gc
from time import perf_counter_ns
from typing import Any

from ..guest.epoch import epoch_ns
from ..ring.table import Column, Table
from ..source import Awaited, Recorder
from ..source import Source as BaseSource

__all__ = ["Pauses", "Source"]

MIN_NS = 500_000
#: Pauses that may wait for the recorder's thread.
MAX_PAUSES = 10_000


class Pauses(Table):
    name = "python.gc"
    doc = "One row per run of Python's garbage collector that stopped the process for 0.5 ms or more."
    capacity = 8_192
    columns = (
        Column("step", "int", "", "number of the running step; -1 before the first"),
        Column("ts", "time", "UTC", "end of the collection"),
        Column("generation", "int", "", "oldest generation collected: 0 for the youngest objects, 2 for all objects"),
        Column("duration", "float", "s", "time it took; no other Python code runs meanwhile"),
        Column("collected", "int", "", "objects freed"),
    )


class Source(BaseSource):
    name = "gc"
    tables = (Pauses,)
    waits_for = Awaited("no collection has taken 0.5 ms since the recorder started", "no action needed")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._buffer = recorder.buffer(Pauses)
        self._step = recorder.step
        self._began = 0
        self._noted: list[tuple[int, int, int, int, int]] = []
        #: One bound method object, so that it can be found and removed.
        self._callback = self._on_collection

    def start(self) -> None:
        gc.callbacks.append(self._callback)

    def tick(self) -> None:
        noted = self._noted[:]
        del self._noted[: len(noted)]
        if not noted:
            return
        epoch = epoch_ns()
        for step, ended, generation, took, collected in noted:
            self._buffer.rows.append((step, (ended + epoch) // 1000, generation, took * 1e-9, collected))

    def stop(self) -> None:
        if self._callback in gc.callbacks:  # unless the job has removed it
            gc.callbacks.remove(self._callback)
        self.tick()

    # On the collecting thread.

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        now = perf_counter_ns()
        if phase == "start":
            self._began = now
            return
        began, self._began = self._began, 0
        if began and now - began >= MIN_NS and len(self._noted) < MAX_PAUSES:
            self._noted.append((self._step.number, now, info["generation"], now - began, info["collected"]))
