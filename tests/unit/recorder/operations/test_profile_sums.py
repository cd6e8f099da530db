"""Our sums of a profile equal torch's own `key_averages`."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def test_times_calls_and_memory_agree_with_torchs_own_sums() -> None:
    from torch.profiler import ProfilerActivity, profile

    from probe_agent.recorder.operations.profile_steps import _sum_up

    network = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(network.parameters())
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as taken:
        for _ in range(3):
            optimizer.zero_grad()
            network(torch.randn(8, 32)).square().mean().backward()
            optimizer.step()

    inner: Any = taken.profiler
    ours = _sum_up(inner.kineto_results.events(), shapes=False)
    theirs = {one.key: one for one in taken.key_averages() if one.key != "[memory]"}

    assert {name for name, _, _ in ours} == set(theirs)
    for (name, _, _), sums in ours.items():
        other = theirs[name]
        assert sums.calls == other.count, name
        assert sums.cpu / 1e3 == pytest.approx(other.cpu_time_total, rel=1e-3, abs=1), name
        assert sums.own_cpu / 1e3 == pytest.approx(other.self_cpu_time_total, rel=1e-3, abs=1), name
        assert sums.cpu_memory == other.cpu_memory_usage, name
        assert sums.own_cpu_memory == other.self_cpu_memory_usage, name
