"""A target that is killed at any instant leaves whole rows and whole files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from time import sleep

import pytest
from support.waiting import until

from .conftest import Dying, rows

RAISES = """
import itertools
def fail(number):
    try: {}[number]
    except KeyError as error: raise ValueError(f"{number} " + "x" * 500) from error
for number in itertools.count():
    thread = threading.Thread(target=fail, args=(number,), name=f"t{number}")
    thread.start(); thread.join()
"""


@pytest.mark.parametrize("rounds", [2, pytest.param(60, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_a_kill_at_a_random_instant_leaves_no_torn_row(rounds: int, tmp_path: Path) -> None:
    random.seed(rounds)
    num_seen = 0
    for number in range(rounds):
        job = Dying("sys.stderr = open(os.devnull, 'w')\n" + RAISES, tmp_path / str(number), PROBE="1")
        job.wait_for_recorder()
        assert job.process.stdin is not None
        job.process.stdin.write(b"go\n")
        job.process.stdin.flush()
        until(lambda: rows(job.files))  # noqa: B023
        sleep(random.random() * 0.1)  # the instant is what is under test
        job.process.kill()
        job.process.communicate()

        found = rows(job.files)
        num_seen += len(found)
        assert [(row["number"], row["link"], row["type"]) for row in found] == [
            pair
            for one in range(len(found) // 2)
            for pair in ((found[2 * one]["number"], 0, "ValueError"), (found[2 * one]["number"], 1, "KeyError"))
        ]
        assert all(
            row["message"] == f"{row['number']} " + "x" * 500 for row in found if not row["link"] and row["message"]
        )
        for path in job.files.glob("*.json"):
            assert isinstance(json.loads(path.read_text()), dict)
    assert num_seen > rounds
