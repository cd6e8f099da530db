"""Copies whose values are watched while the trained model is updated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from probe_agent.wire import TensorsLine
from probe_cli.cluster.nan.tensors import Reading
from probe_cli.diagnose import copies
from probe_cli.diagnose.finding import NoEvidence
from probe_cli.diagnose.job import Job

COLUMNS = ("module", "tensor", "norm", "biggest")


class Watched(Job):
    """A job of one rank whose trained model is updated ten times between two looks."""

    def __init__(self, norms: Callable[[int], float]) -> None:
        super().__init__({}, 1.0)
        self._norms = norms
        self.looks = 0

    async def ask(self, question: Any, endpoints: Any = None, *, timeout_s: float | None = None) -> dict[Any, Any]:
        norm = self._norms(self.looks)
        self.looks += 1
        rows = (["Target.0", "weight", norm, 0.5], ["Net.0", "weight", float(self.looks), 0.5])
        return {"rank": Reading(TensorsLine(columns=COLUMNS, rows=rows, done=True), None)}

    async def rows(self, sql: str, rank: int) -> list[Mapping[str, Any]]:
        return [{"module": "Target", "versions": 0}, {"module": "Net", "versions": 1000 + 10 * self.looks}]


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "PAUSE_S", 0.0)


def watch(job: Job, enough: int) -> int:
    return asyncio.run(copies.updates_without_change(job, 0, "Target", "Net", enough))


def test_a_copy_whose_values_stay_is_told_with_the_updates_that_were_watched() -> None:
    assert watch(Watched(lambda look: 3.0), 40) >= 40


def test_a_copy_that_is_written_without_being_counted_has_changed() -> None:
    assert watch(Watched(lambda look: 3.0 if look < 3 else 3.1), 40) == 0


def test_too_few_updates_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "WATCH_S", 0.05)

    with pytest.raises(NoEvidence, match="did not change in the"):
        watch(Watched(lambda look: 3.0), 10_000_000)
