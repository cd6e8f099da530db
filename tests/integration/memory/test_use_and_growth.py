"""`probe PID memory`: its sizes against other counts of the same, and growth where it is planted and nowhere else."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.commands import probe
from support.waiting import stop, until

from .conftest import ADDRESS_SPACE, Job

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

MIB = 2**20
OWN, CHILDREN = "memory of the process", "memory of child processes"
Judged = Callable[[str, str], dict[str, Any]]


def test_tensors_are_counted_as_the_job_counts_them(jobs: dict[str, Job]) -> None:
    sizes = json.loads((jobs["leaking"].folder / "sizes").read_text())

    found = until(lambda: (seen := jobs["leaking"].memory())["tensors"] and seen)

    counted = {one["kind"]: one["mib"] * MIB for one in found["tensors"]}
    assert counted == pytest.approx(sizes)
    assert {one["device"] for one in found["tensors"]} == {"cpu"}
    largest = found["modules"][0]
    assert (largest["module"], largest["mib"] * MIB) == ("Net.inner", 4 * (128 * 512 + 512))


def pages_mib(pid: int) -> dict[str, float]:
    """Return what the kernel says of the process's pages."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {words[0].rstrip(":"): int(words[1]) / 1024 for words in map(str.split, lines)}


def test_a_stopped_process_is_measured_from_outside(jobs: dict[str, Job]) -> None:
    job = jobs["leaking"]
    stop(job.pid)
    try:
        before = pages_mib(job.pid)
        found = job.memory()
        pages = pages_mib(job.pid)
    finally:
        os.kill(job.pid, signal.SIGCONT)

    now = found["host_memory"]
    assert now["rss"] == pytest.approx(pages["Rss"], rel=0.02)
    assert now["anonymous"] == pytest.approx(pages["Anonymous"], rel=0.02)
    # Whoever else maps torch's libraries comes and goes meanwhile.
    for name, kinds in {"pss": ["Pss"], "private": ["Private_Clean", "Private_Dirty"]}.items():
        least, most = sorted(sum(map(told.__getitem__, kinds)) for told in (before, pages))
        assert 0.98 * least <= now[name] <= 1.02 * most
    own = [part["mib"] for part in found["parts"] if part["name"] != "data-loader workers"]
    assert sum(own) == pytest.approx(pages["Rss"], rel=0.02)
    assert found["tensors"] == [], "its recorder cannot answer"
    assert "stopped" in " ".join(found["gaps"])


@pytest.mark.long
def test_growth_of_the_process_is_found(judged: Judged) -> None:
    found = judged("leaking", OWN)

    trend = found["trends"][OWN]
    assert (found["state"], trend["state"], found["exit_code"]) == ("grows", "grows", 1)
    assert trend["p"] <= 0.001
    assert trend["per_step"] > 0.05
    assert "grows by" in found["sentence"]


def test_the_step_at_which_it_is_full_follows_from_the_limit(judged: Judged) -> None:
    found = judged("leaking", OWN)

    trend = found["trends"][OWN]
    full = trend["full"]
    now = found["host_memory"]
    assert now["address_limit"] == ADDRESS_SPACE / MIB
    if "ulimit -v" in full["limit"]:  # unless the host itself has less left, which the workers fill, too
        assert full["headroom"] == pytest.approx(now["address_limit"] - now["address_space"])
        assert full["step"] - found["step"] == pytest.approx(full["headroom"] / trend["per_step"], rel=0.2)
    assert full["earliest_step"] <= full["step"]
    assert f"full at step {full['step']:,}" in found["sentence"]


def test_no_growth_is_claimed_of_a_job_whose_memory_rises_and_falls(judged: Judged) -> None:
    looks = [judged("healthy", OWN) for _ in range(3)]

    assert {look["trends"][OWN]["state"] for look in looks} <= {"not significant", "levelling off"}, looks[-1]["trends"]
    assert {look["exit_code"] for look in looks} == {0}
    # All programs of the host share /dev/shm: other tests may fill it meanwhile.
    said = ("no significant growth", "levelling off", "; /dev/shm grows by")
    assert any(words in looks[-1]["sentence"] for words in said), looks[-1]["sentence"]


def test_growth_of_workers_is_found(judged: Judged) -> None:
    found = judged("leaking", CHILDREN)

    assert found["trends"][CHILDREN]["state"] == "grows", found["trends"]
    assert found["host_memory"]["num_workers"] == 1
    part = next(part for part in found["parts"] if part["name"] == "data-loader workers")
    assert part["mib"] == found["host_memory"]["workers_private"]


def test_several_targets_have_a_row_each(jobs: dict[str, Job]) -> None:
    named = [word for kind in ("leaking", "healthy") for word in ("-t", str(jobs[kind].pid))]

    done = probe(*named, "memory", "--format", "json")

    answer = json.loads(done.stdout)
    assert {row["pid"] for row in answer["rows"]} == {jobs[kind].pid for kind in ("leaking", "healthy")}
    for row, target in zip(answer["rows"], answer["targets"], strict=True):
        assert row["parameters"] == pytest.approx(sum(t["mib"] for t in target["tensors"] if t["kind"] == "parameters"))


def test_of_a_killed_process_the_rings_tell(jobs: dict[str, Job], judged: Judged) -> None:
    judged("leaking", OWN)
    jobs["leaking"].process.kill()
    jobs["leaking"].process.wait()

    found = jobs["leaking"].memory()

    assert (found["state"], found["host_memory"]) == ("grows", None)
    assert {part["name"] for part in found["parts"]} == {OWN, "child processes"}
    assert "used" in found["sentence"]
    assert "has ended" in " ".join(found["gaps"])
