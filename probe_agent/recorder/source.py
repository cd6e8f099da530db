"""What a source of rows is, and what it gets to work with.

Every module in `hooks/` and `samplers/` has one class `Source`. The runtime makes one of each when what it
`needs` is imported in the target, starts it, and stops it on detach or after its third failure.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from .config import Settings
from .job.peers import Peers
from .names.candidates import Kind
from .ring.buffer import RowBuffer
from .ring.table import Table
from .steps.ends import StepEnds, Steps
from .steps.governor import Governor
from .steps.queue import StepQueue
from .steps.step import Step
from .steps.updates import Updates
from .torch import inventory
from .torch.device import Device
from .torch.seen import Seen

__all__ = ["Awaited", "Cost", "Recorder", "Source"]


class Awaited(NamedTuple):
    """Why a table has no rows, as the end of a sentence, and what to do about it."""

    why: str
    remedy: str


class Cost:
    """What a source has cost the thread it runs on, in nanoseconds; the source itself adds it up."""

    __slots__ = ("calls", "ns")

    def __init__(self) -> None:
        self.calls = 0
        self.ns = 0


class Recorder:
    """What all sources share: settings, the step being taken, their way into tables, where failures go."""

    def __init__(self, settings: Settings, on_error: Callable[[str, BaseException], bool]) -> None:
        self.settings = settings
        self.step = Step()
        #: What is to run on the training thread between two steps.
        self.at_step = StepQueue()
        self.governor = Governor(settings)
        self.seen = Seen()
        #: What this rank is in its job, as far as it is known: see roles.py.
        self.roles: dict[str, int] = {}
        self.buffers: dict[str, RowBuffer] = {}
        self.costs: dict[str, Cost] = {}
        #: Where the target keeps its files.
        self.folder = ""
        #: Record a failure of ours. True when the exception is the job's own (a signal handler of the job
        #: raised it while our code ran); then it has to be raised again.
        self.fail = on_error
        #: Have something called on our own thread when a descriptor is ready, and the opposite.
        self.watch: Callable[[int, Callable[[], None]], None] = lambda descriptor, act: None
        self.unwatch: Callable[[int], None] = lambda descriptor: None
        #: A weak reference to what gave the job its newest batch, an iterator of a DataLoader.
        self.batches: Callable[[], object] = lambda: None
        #: The name of the job, as its ranks have agreed on it; empty until they have.
        self.job = ""
        self._device: Device | None = None
        self._peers: Peers | None = None
        self._ends: StepEnds | None = None
        self._updates: Updates | None = None

    @property
    def device(self) -> Device:
        """The accelerator of the target; torch must be loaded."""
        self.open_device()
        assert self._device is not None
        return self._device

    def open_device(self) -> None:
        """Make `device`, unless it is there."""
        if self._device is None:
            self._device = Device(sys.modules["torch"])

    @property
    def peers(self) -> Peers:
        """The other ranks of the job; `folder` must be known."""
        if self._peers is None:
            self._peers = Peers(self.folder)
        return self._peers

    @property
    def ends(self) -> StepEnds:
        """Where steps end; torch must be loaded."""
        if self._ends is None:
            self._ends = StepEnds(self.step, self.settings, self.governor, self.device, self.buffer(Steps), self.fail)
        return self._ends

    @property
    def updates(self) -> Updates:
        """What ends steps where there is no optimizer; torch must be loaded."""
        if self._updates is None:
            self._updates = Updates(self.ends, self.device)
        return self._updates

    def find(self, kind: Kind) -> list[tuple[Any, str]]:
        """Return the job's objects of `kind` with the places where they were found."""
        return inventory.find(kind, self.step.thread, self.seen)

    def has_optimizer(self) -> bool:
        """Search the job for an optimizer; while none has stepped, its class explains why there are no steps."""
        found = self.find(inventory.OPTIMIZER)
        self.seen.optimizer_classes = tuple(type(optimizer).__name__ for optimizer, _ in found)
        return bool(found)

    def has_rows(self, table: type[Table]) -> bool:
        """Whether a row of `table` has been recorded."""
        buffer = self.buffers.get(table.name)
        return buffer is not None and (buffer.writer is not None or bool(buffer.rows))

    def buffer(self, table: type[Table]) -> RowBuffer:
        """The way into `table`; its ring is made when the first row has come."""
        return self.buffers.setdefault(table.name, RowBuffer(table))

    def cost(self, name: str) -> Cost:
        """The account of the source called `name`."""
        return self.costs.setdefault(name, Cost())

    def close(self) -> None:
        """Give back what the sources shared; the rings' files stay."""
        if self._device is not None:
            self._device.close()
        for buffer in self.buffers.values():
            buffer.close()


class Source:
    """Base of every source. `start`, `tick` and `stop` run on our own thread."""

    name = ""
    #: Modules that must be imported by the target first.
    needs: tuple[str, ...] = ()
    #: The tables it records.
    tables: tuple[type[Table], ...] = ()
    #: What these wait for as long as they have no rows; where that depends, `awaited` says it.
    waits_for: Awaited | None = None

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def start(self) -> None:
        """Begin to record."""

    def tick(self) -> None:
        """Called every `flush.interval`."""

    def awaited(self) -> Mapping[str, Awaited]:
        """Which of its tables have no rows now, and why. Called on our own thread, every `flush.interval`."""
        why = self.waits_for
        return {} if why is None else {t.name: why for t in self.tables if not self.recorder.has_rows(t)}

    def stop(self) -> None:
        """Leave nothing behind."""
