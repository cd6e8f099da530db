"""`probe … nan` and `probe … grads`: what is not finite at the end of a step, on each rank."""

from __future__ import annotations

import pytest

from .conftest import Job

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

NET = "DistributedDataParallel.module"


def test_a_healthy_job_has_nothing_and_says_what_was_looked_at(job: Job) -> None:
    job.plant("none")

    code, answer = job.ask("nan")

    assert (code, answer["rows"], answer["exit_code"]) == (0, [], 0), answer
    assert answer["sentence"].startswith("nothing found: 28 of 28 gradients, 28 of 28 parameters, 6 of 6 buffers on")
    assert "2 ranks (0-1), 5,700 values" in answer["sentence"]


def test_a_parameter_is_named_with_its_rank(job: Job) -> None:
    job.plant("parameter")

    code, answer = job.ask("nan")

    named = {(row["rank"], row["kind"], f"{row['module']}.{row['tensor']}") for row in answer["rows"]}
    assert code == 1
    assert (1, "parameter", f"{NET}.blocks.1.inner.weight") in named
    assert answer["sentence"].startswith("rank")


def test_a_buffer_that_training_does_not_use_is_found(job: Job) -> None:
    job.recover()  # of the test before
    job.plant("buffer")

    code, answer = job.ask("nan")

    assert code == 1
    assert [(row["rank"], row["kind"], row["module"], row["tensor"], row["nan"]) for row in answer["rows"]] == [
        (1, "buffer", f"{NET}.norm", "running_var", 1)
    ]
    assert "rank 1: 1 of 3 buffers is not finite after step" in answer["sentence"]
    assert answer["sentence"].endswith("rank 0: all finite")


def test_an_infinite_value_in_a_gradient_is_seen_before_it_is_cleared(job: Job) -> None:
    job.plant("gradient")

    code, answer = job.ask("grads")

    infinite = [row for row in answer["rows"] if row["rank"] == 1 and row["inf"]]
    assert code == 1
    assert [(row["module"], row["tensor"], row["inf"]) for row in infinite] == [(f"{NET}.head", "weight", 1)]


def test_gradients_have_norms_of_every_layer_on_every_rank(job: Job) -> None:
    job.plant("none")

    code, answer = job.ask("grads")

    rows = answer["rows"]
    assert code == 0
    assert [row["module"] for row in rows[:3]] == [f"{NET}.stem", f"{NET}.stem", f"{NET}.blocks.0.inner"]
    assert len(rows) == 28
    assert all(row["norm"] > 0 and row["nan"] == row["inf"] == 0 for row in rows)
    assert all(row["biggest"] <= row["norm"] for row in rows)


def test_a_small_budget_takes_several_steps(job: Job) -> None:
    job.recover()

    code, answer = job.ask("nan", "--budget", "0.1")

    assert code == 0
    assert " to " in answer["sentence"]
