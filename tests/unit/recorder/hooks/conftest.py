"""The recorder's sources around a real training loop in this process, without injection, server or thread."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from probe_agent.recorder.config import Settings  # noqa: E402
from probe_agent.recorder.guest.failures import Errors, Failures  # noqa: E402
from probe_agent.recorder.hooks import (  # noqa: E402
    backward,
    checkpoints,
    clipping,
    data,
    inference,
    modules,
    optimizer,
    our_frames,
    phases,
    updates,
)
from probe_agent.recorder.ring.buffer import RowBuffer  # noqa: E402
from probe_agent.recorder.ring.table import NULL_FLOAT, NULL_INT  # noqa: E402
from probe_agent.recorder.samplers import memory  # noqa: E402
from probe_agent.recorder.source import Recorder  # noqa: E402
from probe_agent.recorder.torch.device import Device  # noqa: E402


class Recording:
    """Rows of a recorder without rings: they wait in their buffers."""

    def __init__(self, like: Any = torch, **settings: int) -> None:
        self.failures = Failures(RowBuffer(Errors))
        values = Settings({f"PROBE_{name.upper()}": str(value) for name, value in settings.items()})
        self.recorder = Recorder(values, self.failures.record)
        self.recorder._device = Device(like)
        hooks = (our_frames, optimizer, modules, backward, clipping, data, phases, checkpoints)
        kinds = (*(module.Source for module in hooks), memory.Source)
        self.inference = inference.Source(self.recorder)
        self.updates = updates.Source(self.recorder)
        self.sources = [*(kind(self.recorder) for kind in kinds), self.updates, self.inference]

    def start(self) -> None:
        for source in self.sources:
            source.start()

    def stop(self) -> None:
        for source in reversed(self.sources):
            source.stop()

    def tick(self) -> None:
        """Do what our own thread does every `flush.interval`, as far as it concerns steps."""
        self.updates.tick()
        self.inference.tick()

    def rows(self, table: str) -> list[dict[str, object]]:
        buffer = self.failures._buffer if table == "probe.errors" else self.recorder.buffers[table]
        texts = {number: text for text, number in buffer._numbers.items()}
        rows = []
        for row in buffer.rows:
            named = {}
            for column, value in zip(buffer.table.columns, row, strict=True):
                if column.kind == "text":
                    value = texts[value]
                named[column.name] = None if value in (NULL_FLOAT, NULL_INT) else value
            rows.append(named)
        return rows

    @property
    def steps(self) -> list[dict[str, object]]:
        return self.rows("python.steps")

    @property
    def trace(self) -> list[dict[str, object]]:
        return self.rows("python.torch_trace")


@pytest.fixture
def recording() -> Iterator[object]:
    """`with recording(trace_every=1) as it:` records, on a torch `like` this one; failures of ours fail the test."""

    @contextmanager
    def record(*, keep_dynamo: bool = False, like: Any = torch, **settings: int) -> Iterator[Recording]:
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None and not keep_dynamo:  # what an earlier test compiled is none of this one's business
            dynamo.reset()
            dynamo.utils.counters.clear()
        it = Recording(like, **settings)
        it.start()
        try:
            yield it
        finally:
            it.stop()
            assert not it.failures._buffer.rows, it.failures._buffer._numbers

    return record  # type: ignore[return-value]
