"""The period that the rings cover, and what `tables` reports about it."""

from __future__ import annotations

import pytest
from support.waiting import until

from probe_agent.recorder.samplers.process import Samples
from probe_agent.targets import Ring

from .conftest import Host


def test_overwritten_rows_are_counted(host: Host) -> None:
    host.target(4096, 10_000)

    [numbers] = [table for table in host.http.get("/v1/tables").json()["tables"] if table["name"] == "test.numbers"]

    assert numbers["rows"] == 4096
    assert numbers["lost"] == 10_000 - 4096
    assert numbers["covers"] == pytest.approx(4095e-6)
    assert numbers["last"] == "1970-01-01T00:00:00.009999"


def test_nothing_is_lost_before_a_ring_is_full(full_host: Host) -> None:
    tables = {table["name"]: table for table in full_host.http.get("/v1/tables").json()["tables"]}

    assert tables["test.numbers"]["lost"] == 0
    assert tables["python.stacks"]["lost"] is None
    assert tables["python.stacks"]["covers"] is None


def test_every_ring_shrinks_when_the_job_says_so(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_RINGS_SCALE", "0.1")
    host.target(64, 1)

    (ring,) = until(lambda: list(host.base.glob("*/*/process.samples.ring")))

    assert Ring(str(ring)).capacity == int(Samples.capacity * 0.1)
