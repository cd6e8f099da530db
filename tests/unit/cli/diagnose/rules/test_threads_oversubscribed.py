"""The ranks of a host start more threads for operators than it has cores."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged


def rank(threads: int, cores: float, forced: int = 0) -> dict[str, list[dict[str, object]]]:
    sample = {"step": 1, "period": 1.0, "cpu": cores, "run_delay": 0.3, "forced_switches": forced}
    return {
        "process.samples": [{**sample, "ts": f"2026-01-01 00:00:{at:02}"} for at in range(10)],
        "process.env": [
            {"kind": "setting", "name": "cpus the main thread may use", "value": "4"},
            {"kind": "setting", "name": "torch.get_num_threads()", "value": str(threads)},
        ],
    }


def test_the_threads_of_all_ranks_of_a_host_are_counted(judged: Judged) -> None:
    (found,) = judged("threads-oversubscribed", rank(4, 1.9), rank(4, 1.9))

    assert "8 threads for operators run on 4 cores, 2 ranks with 4 each" in found.sentence
    assert found.try_first == "OMP_NUM_THREADS=2"


def test_threads_that_take_the_cores_from_each_other_are_named_on_a_busy_host(judged: Judged) -> None:
    (found,) = judged("threads-oversubscribed", rank(16, 0.7, forced=8000))

    assert found.evidence[1] == "8000 times a second one of their threads loses its core to another"
    assert judged("threads-oversubscribed", rank(16, 0.7, forced=900)) == []


def test_as_many_threads_as_cores_and_cores_that_idle_are_fine(judged: Judged) -> None:
    assert judged("threads-oversubscribed", rank(4, 3.9)) == []
    assert judged("threads-oversubscribed", rank(1, 0.9), rank(1, 0.9)) == []
    assert judged("threads-oversubscribed", rank(16, 0.2)) == []


def test_without_samples_there_is_no_evidence(judged: Judged) -> None:
    with pytest.raises(NoEvidence):
        judged("threads-oversubscribed", {})
