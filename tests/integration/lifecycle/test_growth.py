"""A process that is attached to many times does not grow. At full length: `GROWTH_ROUNDS=500 pytest test_growth.py`.

The target collects every ten attaches, so that its largest amount of garbage, which the allocator keeps in part, is
the same in the end as after a third; a real job collects by itself, now and then.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from inject.conftest import detach
from support.waiting import until

from probe_agent import inject
from probe_cli.main import run

from .conftest import Training, training, wait_until_ready

pytestmark = pytest.mark.torch

ROUNDS = int(os.environ.get("GROWTH_ROUNDS", "6"))


def size(target: Training) -> dict[str, float]:
    """Return what may grow."""
    proc = Path(f"/proc/{target.pid}")
    return {
        "threads": len(os.listdir(proc / "task")),
        "descriptors": len(os.listdir(proc / "fd")),
        "mappings": len((proc / "maps").read_text().splitlines()),
        "memory": int((proc / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20,
    }


def grow(target: Training, rounds: int) -> list[dict[str, float]]:
    """Return its size after a third of the rounds, and in the end."""
    sizes = []
    for count in (rounds // 3, rounds - rounds // 3):
        for number in range(count):
            if number % 10 == 0:
                collect(target)
            detach(inject.attach(target.pid))
        for _ in range(2):  # the first one has this very attach in it
            collect(target)
        sizes.append(size(target))
    return sizes


def collect(target: Training) -> None:
    """Have the target collect its garbage."""
    assert run([str(target.pid), "eval", "import gc; gc.collect()"]) == 0
    assert run([str(target.pid), "detach"]) == 0


@pytest.mark.long
@pytest.mark.situation("attach, detach 500 times", "no growth of threads, descriptors, mappings or memory")
def test_a_job_does_not_grow(tmp_path: Path) -> None:
    with training("aot_eager", tmp_path) as target:  # without workers, whose batches would come and go
        wait_until_ready(target)
        before = size(target)
        warm, _ = grow(target, ROUNDS)
        until(lambda: size(target)["threads"] == before["threads"])
        end = size(target)
        target.finish()

    assert end["descriptors"] == before["descriptors"]
    assert end["mappings"] <= warm["mappings"] + 6
    assert end["memory"] - warm["memory"] < 15.0, (before, warm, end)  # the allocator keeps some of what was freed
