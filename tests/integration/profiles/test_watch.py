"""`probe … watch-var`: expressions from step to step, until the client leaves or they keep failing."""

from __future__ import annotations

import json
import signal
import time

import pytest
from support.waiting import until

from .conftest import Training

pytestmark = pytest.mark.torch


def test_each_look_has_the_values_of_its_step(training: Training) -> None:
    watched = training.probe(
        "watch-var", "trainer.current_step", "loss.item()", "type(trainer).__name__", "--every", "4", "--count", "3",
        "--json",
    )  # fmt: skip

    rows = [json.loads(line) for line in watched.stdout.splitlines()]
    counted = [row for row in rows if row["expression"] == "trainer.current_step"]
    assert len(rows) == 9
    assert [row["step"] - counted[0]["step"] for row in counted] == [0, 4, 8]
    assert all(row["step"] % 4 == 0 for row in rows)
    assert {row["value"] - row["step"] for row in counted} == {counted[0]["value"] - counted[0]["step"]}
    assert all(row["value"] > 0 for row in rows if row["expression"] == "loss.item()")
    assert {row["text"] for row in rows if row["expression"].startswith("type")} == {"Trainer"}
    expected = [{"step": row["step"], "value": row["value"]} for row in counted]
    sql = "SELECT step, value FROM python.variables WHERE expression = 'trainer.current_step'"

    def kept() -> list[dict[str, object]]:  # rows are written a moment after they are printed
        done = training.probe("query", sql, "--format", "json", code=None)
        return json.loads(done.stdout)[-3:] if done.returncode == 0 else []

    until(lambda: kept() == expected, says=kept)


def test_a_source_that_fails_three_times_is_removed(training: Training) -> None:
    watched = training.probe("watch-var", "1 / 0", "nowhere", "--json")

    rows = [json.loads(line) for line in watched.stdout.splitlines()]
    assert [row["error"] for row in rows if row["expression"] == "1 / 0"] == ["ZeroDivisionError: division by zero"] * 3
    assert len(rows) == 6
    assert "nowhere: removed after 3 failures" in watched.stderr


def test_code_that_takes_too_long_is_stopped(training: Training) -> None:
    endless = "[0 for _ in iter(int, 1)]"

    watched = training.probe("watch-var", endless, "--json")

    errors = {json.loads(line)["error"] for line in watched.stdout.splitlines()}
    assert errors == {"stopped: it took longer than 1 s"}


def test_statements_are_refused(training: Training) -> None:
    refused = training.probe("watch-var", "x = 1", code=2)

    assert "invalid expression 'x = 1'" in refused.stderr


def test_ctrl_c_ends_it_in_the_target(training: Training) -> None:
    looks = "SELECT COUNT(*) AS n FROM python.variables WHERE expression = '10 + 1'"

    def num_looks() -> int:
        return int(training.rows("query", looks)[0]["n"])

    asking = training.start_probe("watch-var", "10 + 1", "--json")
    assert asking.stdout is not None
    asking.stdout.readline()

    asking.send_signal(signal.SIGINT)
    asking.communicate(timeout=60)

    assert asking.returncode == 130
    until(num_looks)  # rows are written a moment after they are printed
    deadline = time.monotonic() + 20
    before = 0
    while before != (now := num_looks()):
        assert time.monotonic() < deadline, "it is still evaluated"
        before = now
