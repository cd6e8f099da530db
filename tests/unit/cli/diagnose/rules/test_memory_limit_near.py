"""Limits of host memory."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged

ROOMY: dict[str, Any] = {
    "rss": 1000.0, "anonymous": 800.0, "num_workers": 4, "workers_private": 2000.0, "cgroup": "/job",
    "cgroup_used": 3000.0, "cgroup_page_cache": 500.0, "cgroup_limit": 8000.0, "address_space": 9000.0,
    "host_total": 64000.0, "host_available": 50000.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("near", "where"),
    [
        ({"cgroup_used": 8100.0}, "container"),
        ({"address_limit": 9500.0}, "ulimit"),
        ({"host_available": 1000.0}, "host"),
    ],
)
def test_each_limit_that_is_near_is_named_with_what_takes_most(
    judged: Judged, near: dict[str, float], where: str
) -> None:
    (found,) = judged("memory-limit-near", {"process.memory": [{**ROOMY, **near}]})

    assert found.where == where
    assert "fewer loader workers" in found.advice[0]


def test_page_cache_does_not_count(judged: Judged) -> None:
    full_of_cache = {**ROOMY, "cgroup_used": 7900.0, "cgroup_page_cache": 6000.0}

    assert judged("memory-limit-near", {"process.memory": [full_of_cache]}) == []
    assert judged("memory-limit-near", {"process.memory": [ROOMY]}) == []


def test_without_a_process_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NoEvidence):
        judged("memory-limit-near", {})
