"""Base class of a source of rows, and the state that all sources share.

Every module in `hooks/` and `samplers/` has one class `Source`. The runtime makes an instance once the target has
imported what it `needs`, starts it, and stops it on detach or after its third failure.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple

from .config import Settings
from .job.peers import Peers
from .names.candidates import Kind
from .ring.buffer import RowBuffer
from .ring.table import Table
from .steps.ends import StepEnds, Steps
from .steps.evaluations import Evaluations
from .steps.governor import Governor
from .steps.gradient_reader import GradientReader
from .steps.queue import StepQueue
from .steps.step import Step
from .steps.updates import Updates
from .torch import inventory
from .torch.device import Device
from .torch.seen import Seen

__all__ = ["Awaited", "Cost", "Recorder", "Source"]


class Awaited(NamedTuple):
    """Why a table has no rows, and the remedy."""

    why: str
    remedy: str


class Cost:
    """Cost of a source on the thread it runs on, in nanoseconds, summed by the source itself."""

    __slots__ = ("calls", "ns")

    def __init__(self) -> None:
        self.calls = 0
        self.ns = 0


class Recorder:
    """State shared by all sources: settings, the running step, the buffers of tables, the handler of failures."""

    def __init__(self, settings: Settings, on_error: Callable[[str, BaseException], bool]) -> None:
        self.settings = settings
        self.step = Step()
        #: Work for the training thread between two steps.
        self.at_step = StepQueue()
        self.governor = Governor(settings)
        self.seen = Seen()
        #: Role of this rank in its job, as far as it is known (job/roles.py).
        self.roles: dict[str, int] = {}
        self.buffers: dict[str, RowBuffer] = {}
        self.costs: dict[str, Cost] = {}
        #: The target's folder.
        self.folder = ""
        #: Record a failure of the recorder. True if the exception is the job's own (raised by its signal handler while
        #: the recorder's code ran), which must be raised again.
        self.fail = on_error
        #: Call a function on the recorder's thread when a descriptor is ready, and the opposite.
        self.watch: Callable[[int, Callable[[], None]], None] = lambda descriptor, act: None
        self.unwatch: Callable[[int], None] = lambda descriptor: None
        #: What the job does before its first step, if that is known (samplers/start.py).
        self.before_first_step: Callable[[], Awaited | None] = lambda: None
        #: Answer of one of the operations (operations/), as a client would get it.
        self.ask: Callable[[str, Mapping[str, Any]], dict[str, Any]] = lambda name, request: {}
        #: Make the ring of a buffer before its first row, or write its rows to the ring at once, on the calling thread.
        self.make_ring: Callable[[RowBuffer], None] = lambda buffer: None
        self.write_out: Callable[[RowBuffer], None] = lambda buffer: None
        #: Weak reference to the DataLoader iterator that gave the job its newest batch.
        self.batches: Callable[[], object] = lambda: None
        #: Name of the job on which its ranks have agreed; empty until they have.
        self.job = ""
        #: How its models are evaluated.
        self.evaluations = Evaluations()
        self.gradients = GradientReader(
            self.at_step, self._parameters, lambda: self.device.is_watched(), lambda name, error: self.fail(name, error)
        )
        self._device: Device | None = None
        self._peers: Peers | None = None
        self._ends: StepEnds | None = None
        self._updates: Updates | None = None

    @property
    def device(self) -> Device:
        """The target's device; torch must be loaded."""
        self.open_device()
        assert self._device is not None
        return self._device

    def open_device(self) -> None:
        """Make `device` if it does not exist yet."""
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
        """The boundary between steps; torch must be loaded."""
        if self._ends is None:
            self._ends = StepEnds(self.step, self.settings, self.governor, self.device, self.buffer(Steps), self.fail)
        return self._ends

    @property
    def num_steps(self) -> int:
        """Steps that have ended since the recorder was started, on any thread."""
        return 0 if self._ends is None else self._ends.num_ended

    @property
    def steps_are_calls(self) -> bool:
        """Whether the steps so far are calls of a module, as in a server, and need not follow each other."""
        return self._ends is not None and self._ends.takes_calls and self._ends.num_ended > 0

    @property
    def updates(self) -> Updates:
        """The detector of steps without an optimizer; torch must be loaded."""
        if self._updates is None:
            self._updates = Updates(self.ends, self.device)
        return self._updates

    def find(self, kind: Kind) -> list[tuple[Any, str]]:
        """Return the job's objects of `kind` with the places where they were found."""
        return inventory.find(kind, self.step.thread, self.seen)

    def _parameters(self) -> Iterator[Any]:
        """Yield the parameters of the job's models and optimizers, each once."""
        seen: set[int] = set()
        for one in inventory.parameters(self.find(inventory.MODEL), self.find(inventory.OPTIMIZER)):
            if id(one) not in seen:
                seen.add(id(one))
                yield one

    def has_optimizer(self) -> bool:
        """Search the job for an optimizer; while none has stepped, its class explains why there are no steps."""
        found = self.find(inventory.OPTIMIZER)
        self.seen.optimizer_classes = tuple(type(optimizer).__name__ for optimizer, _ in found)
        return bool(found)

    def has_rows(self, table: type[Table]) -> bool:
        """Return whether a row of `table` has been recorded."""
        buffer = self.buffers.get(table.name)
        return buffer is not None and bool(buffer.rows or (buffer.writer and buffer.writer.num_rows))

    def buffer(self, table: type[Table]) -> RowBuffer:
        """Return the buffer of `table`, whose ring is made when the first row has come."""
        return self.buffers.setdefault(table.name, RowBuffer(table))

    def cost(self, name: str) -> Cost:
        """Return the cost of the source called `name`."""
        return self.costs.setdefault(name, Cost())

    def close(self) -> None:
        """Close the shared device and the buffers; the files of the rings stay."""
        if self._device is not None:
            self._device.close()
        for buffer in list(self.buffers.values()):
            buffer.close()


class Source:
    """Base of every source. `start`, `tick` and `stop` run on the recorder's thread."""

    name = ""
    #: Modules that the target must have imported.
    needs: tuple[str, ...] = ()
    #: Tables that it records.
    tables: tuple[type[Table], ...] = ()
    #: Why these have no rows yet, if the reason is always the same; otherwise `awaited` returns it.
    waits_for: Awaited | None = None

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def start(self) -> None:
        """Start to record."""

    def tick(self) -> None:
        """Do periodic work, every `flush.interval`."""

    def awaited(self) -> Mapping[str, Awaited]:
        """Return which of its tables have no rows, and why; called every `flush.interval`."""
        why = self.waits_for
        return {} if why is None else {t.name: why for t in self.tables if not self.recorder.has_rows(t)}

    def stop(self) -> None:
        """Undo everything that it has changed in the process."""
