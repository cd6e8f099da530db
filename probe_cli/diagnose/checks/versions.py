"""Versions of Python, torch and the driver, and whether they fit each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.check import Check, Level, Line, settings_of
from probe_cli.diagnose.finding import NoEvidence
from probe_cli.diagnose.rule import Asked

__all__ = ["CHECK"]

SQL = "SELECT kind, name, value FROM process.env WHERE kind = 'version'"


def read(asked: Sequence[Asked]) -> Iterable[Line]:
    for one in asked:
        told = settings_of(one, "version")
        if "torch" not in told:
            raise NoEvidence("the recorder has not told its versions")
        if told.get("cuda of torch") and not told.get("nvidia driver"):
            yield Line(
                Level.WARN,
                f"torch {told['torch']} is built for CUDA {told['cuda of torch']}, and there is no NVIDIA driver:"
                " it runs on the CPU",
                "start the job on a host with the driver, or the container with --gpus all",
                (one.rank,),
            )
    names = ("python", "torch", "cuda of torch", "nccl", "nvidia driver", "transformers", "lightning", "deepspeed")
    first = settings_of(asked[0], "version")
    yield Line(Level.OK, ", ".join(f"{name} {first[name]}" for name in names if first.get(name)))


CHECK = Check(
    "versions", "Do Python, torch, CUDA and the driver fit each other?", SQL, read, ("cuda-mismatch",), is_live=True
)
