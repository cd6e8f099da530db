"""Rank and world size in the environment that a launcher gives each process.

Used inside the target, and beside it for a process without a recorder. Slurm's own variables are left out: they say 0
of N in the shell of a batch job, too, whose program may be a job of one process.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["rank_in"]

#: torchrun and its like; Open MPI's mpirun; those of MPICH and Intel MPI.
_NAMES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def rank_in(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return rank and world size; None if no launcher has said both."""
    for names in _NAMES:
        rank, world_size = (environ.get(name, "") for name in names)
        if rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size):
            return int(rank), int(world_size)
    return None
