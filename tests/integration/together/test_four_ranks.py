"""Four ranks: `eval --all --at-step`, and `backtrace --all-ranks` as one tree."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

import pytest
from support.commands import Probe
from support.waiting import stop

from .conftest import Job

pytestmark = [pytest.mark.long, pytest.mark.torch, pytest.mark.timeout(240)]


SUM = """
import torch, torch.distributed as dist
if dist.is_initialized():
    tensor = torch.tensor([trainer.current_step])
    dist.all_reduce(tensor)
    print(f'sum of steps over all ranks: {tensor.item()}')"""
CHANGE = "optimizer.param_groups[0]['lr'] = 0.5\ntrainer.changed = trainer.current_step"
CHANGED = "print(trainer.changed, optimizer.param_groups[0]['lr'])"


@pytest.fixture(scope="module")
def standing(four: Job) -> Job:
    """Rank 0 sleeps, the others wait for it in a collective."""
    four.stand()
    return four


def test_four_ranks_agree_and_what_the_code_changes_is_changed_on_all(four: Job, probe: Probe) -> None:
    answers = [probe(*four.targets, "--all", "eval", "--at-step", "next", code) for code in (SUM, CHANGE, CHANGED)]

    assert [answer.returncode for answer in answers] == [0, 0, 0], answers
    found = re.fullmatch(r"== ranks 0-3 ==\nsum of steps over all ranks: (\d+)\n", answers[0].stdout)
    assert found
    assert int(found[1]) % 4 == 0
    assert re.fullmatch(r"== ranks 0-3 ==\n\d+ 0\.5\n", answers[2].stdout)
    assert four.goes_on()


def functions(branch: dict[str, Any]) -> list[str]:
    return [frame["func"] for frame in branch["frames"]]


def test_ranks_that_wait_are_one_branch_and_the_one_they_wait_for_is_another(standing: Job, probe: Probe) -> None:
    answer = probe(*standing.targets, "backtrace", "--all-ranks", "--json")
    told = json.loads(answer.stdout)

    assert (answer.returncode, len(told["answered"]), told["unanswered"]) == (0, 4, [])
    (tree,) = told["tree"]
    assert tree["ranks"] == [0, 1, 2, 3]
    assert functions(tree)[:1] == ["<module>"]
    waiting, sleeping = tree["branches"]
    assert (waiting["ranks"], sleeping["ranks"]) == ([1, 2, 3], [0])
    assert "all_reduce" in functions(waiting)
    assert sleeping["frames"][-1]["source"] == "time.sleep(0.2)"


def test_people_see_a_tree_with_the_source_at_its_leaves(standing: Job, probe: Probe) -> None:
    answer = probe(*standing.targets, "backtrace", "--all-ranks")

    lines = answer.stdout.splitlines()
    assert (answer.returncode, answer.stderr) == (0, "")
    assert lines[0] == "4 ranks (0-3)"
    assert "├─ 3 ranks (1-3)" in lines
    assert "└─ rank 0" in lines
    assert lines[-1].strip() == "time.sleep(0.2)"
    assert any("together_training.py:" in line for line in lines)


def test_a_stopped_rank_is_read_from_outside_and_a_dead_host_is_named(standing: Job, probe: Probe) -> None:
    pid = standing.pid(3)
    stop(pid)
    try:
        stopped = probe(*standing.targets, "backtrace", "--all-ranks", "--json")
    finally:
        os.kill(pid, signal.SIGCONT)
    standing.servers[0].kill()
    standing.servers[0].wait()
    without = probe(*standing.targets, "backtrace", "--all-ranks")
    nobody = probe("-t", standing.endpoints[0], "backtrace", "--all-ranks")

    told = json.loads(stopped.stdout)
    assert (stopped.returncode, len(told["answered"])) == (0, 4)
    (note,) = told["notes"]
    assert note["ranks"] == [3]
    assert "read from outside" in note["note"]
    assert without.returncode == 3
    assert without.stdout.startswith("2 ranks (1,3)\n")
    assert f"{standing.endpoints[0]} refused the connection" in without.stderr
    assert re.search(rf"2 of \d answered; not: {standing.endpoints[0]}", without.stderr)
    assert nobody.returncode == 4
