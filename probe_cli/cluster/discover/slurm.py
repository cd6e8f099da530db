"""`-t slurm:8080`: the hosts of the SLURM job that we are run in, each with this port.

Reads SLURM_JOB_NODELIST; neither scontrol nor anything else of SLURM is needed.
"""

from __future__ import annotations

import os

from probe_agent.errors import BadRequest

from .brackets import expanded, split

__all__ = ["endpoints"]

_VARIABLES = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")


def endpoints(port: str) -> list[str]:
    """`host:port` of every host of the job. Raises BadRequest."""
    if not (port.isascii() and port.isdigit()):
        raise BadRequest(f"slurm:{port}: {port!r} is no port", "as in slurm:8080")
    nodes = next((os.environ[name] for name in _VARIABLES if os.environ.get(name, "").strip()), "")
    hosts = [host for part in split(nodes) for host in expanded(part)]
    if not hosts:
        raise BadRequest(
            f"slurm:{port}: {_VARIABLES[0]} is not set, so this is no SLURM job's environment",
            "run it inside the job (srun --jobid ID --overlap …), or set it: squeue -j ID -h -o %N shows the hosts",
        )
    return [f"{host}:{port}" for host in hosts]
