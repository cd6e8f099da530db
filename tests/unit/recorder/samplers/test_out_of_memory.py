"""Rows made of an out-of-memory error, of counters and blocks as torch has them; this machine has no GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from probe_agent.recorder.samplers.out_of_memory import OomBlocks, Ooms, Source

MIB = 2**20


@pytest.mark.torch
def test_cuda_is_not_initialised_for_the_observer(sampling):
    torch = pytest.importorskip("torch")
    it = sampling(Source, Ooms)

    it.source.tick()

    assert it.rows() == []
    assert not torch.cuda.is_initialized()


def fake_torch(attached: list) -> SimpleNamespace:
    block = {"state": "active_allocated", "size": 3 * MIB, "frames": [{"name": "f", "filename": "/m.py", "line": 7}]}
    counters = {"allocated_bytes": {"all": {"current": 5 * MIB}}, "reserved_bytes": {"all": {"current": 6 * MIB}}}
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        memory_stats_as_nested_dict=lambda device: counters,
        memory_snapshot=lambda: [{"device": 0, "blocks": [block, block]}, {"device": 1, "blocks": [block]}],
    )
    return SimpleNamespace(cuda=cuda, _C=SimpleNamespace(_cuda_attach_out_of_memory_observer=attached.append))


def test_an_error_leaves_the_counters_and_the_largest_blocks(sampling, monkeypatch):
    attached: list = []
    it = sampling(Source, Ooms)
    monkeypatch.setitem(sys.modules, "torch", fake_torch(attached))
    it.source.tick()
    it.source.tick()

    attached[0](0, 2 * MIB, 8 * MIB, MIB)

    assert len(attached) == 1, "it is attached once"
    (row,) = it.source._ooms.rows
    assert row[3:] == (2, 5, 6, 8, 1)
    (block,) = it.source._blocks.rows
    assert block[5:] == (7, 2, 6.0, 3.0)
    assert len(block) == len(OomBlocks.columns)
    it.source._ooms.rows.clear()
    it.source._blocks.rows.clear()


def test_after_a_detach_the_observer_does_nothing(sampling, monkeypatch):
    attached: list = []
    it = sampling(Source, Ooms)
    monkeypatch.setitem(sys.modules, "torch", fake_torch(attached))
    it.source.tick()

    it.source.stop()
    attached[0](0, 2 * MIB, 8 * MIB, MIB)

    assert it.source._ooms.rows == []
