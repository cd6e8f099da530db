"""After a detach a job is as it was before, as seen from inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

from .conftest import training, wait_until_ready
from .test_twin import visit

pytestmark = pytest.mark.torch


@pytest.mark.situation("after a detach", "threads, descriptors, handlers, modules, hooks and files are as before")
def test_a_job_is_as_it_was_before(tmp_path: Path, probe: Any) -> None:
    with training("eager", tmp_path) as target:
        wait_until_ready(target)
        visits = [visit(probe, target.pid) for _ in range(2)]
        (tmp_path / "look").touch()
        seen = target.num_steps
        until(lambda: target.num_steps > seen + 200, 60.0)
        said = target.finish()

    assert visits == [[(0, "")] * 8] * 2
    (before, num_before), (after, num_after) = said["before"], said["after"]
    assert after == before
    # Modules of the standard library that we were the first to load (socket, mmap, …) stay mapped; of ours nothing.
    assert num_after <= num_before + 40
