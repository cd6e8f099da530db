"""Parameters whose storage a sharded model has released: reading one would end the job."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_only_values_that_are_in_memory_are_read() -> None:
    from probe_agent.recorder.hooks.replicas import _checksum, _is_here

    flat = torch.arange(64, dtype=torch.float32)
    views = [torch.nn.Parameter(flat[:32]), torch.nn.Parameter(flat[32:])]
    before = [_is_here(one) for one in views]
    checksum = _checksum(views)
    flat.untyped_storage().resize_(0)

    assert (before, [_is_here(one) for one in views]) == ([True, True], [False, False])
    assert checksum > 0
    assert not _is_here(torch.nn.Parameter(torch.empty(3, device="meta")))
    assert not _is_here(torch.eye(3).to_sparse())
