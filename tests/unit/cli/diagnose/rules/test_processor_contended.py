"""The training thread waits for a core."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged

ENV = [
    {"kind": "setting", "name": "cpus the main thread may use", "value": "4"},
    {"kind": "setting", "name": "torch.get_num_threads()", "value": "4"},
]


def samples(delay: float, cpu: float) -> list[dict[str, object]]:
    return [
        {
            "step": 1,
            "ts": f"2026-01-01 00:00:{at:02}",
            "period": 1.0,
            "cpu": cpu,
            "forced_switches": 4000,
            "run_delay": delay,
            "num_threads": 40,
        }
        for at in range(10)
    ]


def test_too_many_threads_of_its_own_and_those_of_others_are_told_apart(judged: Judged) -> None:
    (own,) = judged("processor-contended", {"process.samples": samples(0.4, 3.9), "process.env": ENV})
    (others,) = judged("processor-contended", {"process.samples": samples(0.4, 1.5), "process.env": ENV})

    assert "more threads at work than cores" in own.sentence
    assert "other processes take the cores" in others.sentence


def test_ranks_that_take_each_others_cores_are_no_other_processes(judged: Judged) -> None:
    env = [*ENV, {"kind": "hardware", "name": "cpus", "value": "4"}]
    bound = [*ENV, {"kind": "hardware", "name": "cpus", "value": "64"}]

    for known, says in ((env, "the job has more threads at work than cores"), (bound, "other processes")):
        found = judged("processor-contended", *[{"process.samples": samples(0.4, 1.9), "process.env": known}] * 2)
        assert [(one.ranks, says in one.sentence) for one in found] == [((0,), True), ((1,), True)]


@pytest.mark.parametrize(("num_ranks", "is_own"), [(2, False), (3, True)])
def test_ranks_with_more_threads_than_cores_take_them_before_they_are_all_taken(
    judged: Judged, num_ranks: int, is_own: bool
) -> None:
    env = [{**row, "value": "1"} if "threads" in row["name"] else row for row in ENV]
    rank = {
        "process.samples": samples(0.3, 2.8 / num_ranks),
        "process.env": [*env, {"kind": "hardware", "name": "cpus", "value": "4"}],
    }

    found = judged("processor-contended", *[rank] * num_ranks)

    assert {"the job has more threads" in one.sentence for one in found} == {is_own}


def test_a_thread_that_gets_its_core_is_fine(judged: Judged) -> None:
    assert judged("processor-contended", {"process.samples": samples(0.02, 3.9), "process.env": ENV}) == []


def test_without_samples_there_is_no_evidence(judged: Judged) -> None:
    with pytest.raises(NoEvidence):
        judged("processor-contended", {"process.env": ENV})
