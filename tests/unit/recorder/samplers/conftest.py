"""One sampler in this process, its rows waiting in their buffer: no injection, no server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from probe_agent.recorder.config import Settings
from probe_agent.recorder.guest.failures import Errors, Failures
from probe_agent.recorder.ring.buffer import RowBuffer
from probe_agent.recorder.ring.table import NULL_FLOAT, Table
from probe_agent.recorder.source import Recorder, Source

DEADLINE_S = 10.0


class Sampling:
    """`kind` between its start and its stop, writing into `table`."""

    def __init__(self, kind: type[Source], table: type[Table], settings: dict[str, str]) -> None:
        self.failures = Failures(RowBuffer(Errors))
        self.recorder = Recorder(Settings(settings), self.failures.record)
        self.source = kind(self.recorder)
        self._buffer = self.recorder.buffer(table)
        # As in a target: on a thread that does nothing else.
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(self.source.start).result()

    def stop(self) -> None:
        self._thread.submit(self.source.stop).result()
        self._thread.shutdown()
        self.recorder.close()

    def rows(self) -> list[dict[str, object]]:
        """Return the recorded rows, decoded."""
        texts = {number: text for text, number in self._buffer._numbers.items()}
        rows = []
        for row in self._buffer.rows:
            assert self._buffer.table.row_struct().pack(*row)
            named = {}
            for column, value in zip(self._buffer.table.columns, row, strict=True):
                shown = texts[value] if column.kind == "text" else value
                named[column.name] = None if shown == NULL_FLOAT else shown
            rows.append(named)
        return rows

    def next_row(self) -> dict[str, object]:
        """Tick until there is one more row."""
        before = len(self._buffer.rows)
        deadline = time.monotonic() + DEADLINE_S
        while len(self._buffer.rows) == before:
            assert time.monotonic() < deadline, "no row came"
            self._thread.submit(self.source.tick).result()
            time.sleep(0.02)
        return self.rows()[-1]


@pytest.fixture
def sampling() -> Iterator[Callable[..., Sampling]]:
    started: list[Sampling] = []

    def start(kind: type[Source], table: type[Table], **settings: str) -> Sampling:
        started.append(Sampling(kind, table, settings))
        return started[-1]

    yield start
    for one in started:
        one.stop()
        assert not one.failures._buffer.rows, one.failures._buffer._numbers
