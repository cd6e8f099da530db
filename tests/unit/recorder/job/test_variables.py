"""Rank and world size as launchers put them into the environment."""

from __future__ import annotations

import pytest

from probe_agent.recorder.job.variables import rank_in

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (TORCHRUN, (3, 8)),
        (OPEN_MPI, (1, 2)),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, (0, 4)),
        ({**OPEN_MPI, **TORCHRUN}, (3, 8)),
        ({**OPEN_MPI, "RANK": "1"}, (1, 2)),
    ],
)
def test_the_first_launcher_that_says_both_counts(environ: dict[str, str], expected: tuple[int, int]) -> None:
    assert rank_in(environ) == expected


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "3"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "8", "WORLD_SIZE": "8"},
        {"RANK": "x", "WORLD_SIZE": "8"},
    ],
)
def test_anything_else_is_no_rank(environ: dict[str, str]) -> None:
    assert rank_in(environ) is None


def test_a_batch_job_of_slurm_is_not_rank_0_of_all_its_tasks() -> None:
    assert rank_in({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None
