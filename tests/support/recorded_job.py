"""A job of two hosts with two ranks each that has recorded some steps: real rings, real host servers, no training.

Rank 3 is late to every collective. The hosts' servers are in one process, so their clocks are one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

from benchmarks.simulated import add_target
from probe_agent.recorder.hooks.collectives import Collectives
from probe_agent.recorder.hooks.modules import TorchTrace
from probe_agent.recorder.ring.table import Table
from probe_agent.recorder.samplers.roles import Groups
from probe_agent.recorder.steps.ends import Steps

from .commands import ROOT
from .ports import free_port

__all__ = ["NUM_RANKS", "NUM_STEPS", "RecordedJob", "recorded_job"]

NUM_RANKS, NUM_STEPS = 4, 40
STEP_S, LATE_S = 0.1, 0.02
#: One step in so many is sampled.
EVERY = 10
BEGAN_S = 1_790_000_000


@dataclass(frozen=True)
class RecordedJob:
    """The addresses of its host servers, and the folder of a rank that has no server."""

    addresses: tuple[str, ...]
    ended: Path

    @property
    def named(self) -> list[str]:
        """The options that name all of its hosts."""
        return [word for address in self.addresses for word in ("-t", address)]


def _rows(table: type[Table], rows: Sequence[dict[str, Any]]) -> list[tuple[object, ...]]:
    return [tuple(row.get(column.name) for column in table.columns) for row in rows]


def _us(seconds: float) -> int:
    return round((BEGAN_S + seconds) * 1e6)


def tables_of(rank: int) -> list[tuple[type[Table], list[tuple[object, ...]]]]:
    """What one rank has recorded."""
    steps, calls, modules = [], [], []
    for step in range(NUM_STEPS):
        began, late = step * STEP_S, LATE_S if rank == NUM_RANKS - 1 else 0.0
        steps.append(
            {
                "step": step,
                "ts": _us(began + STEP_S),
                "duration": STEP_S,
                "data_wait": 0.01,
                "forward": 0.03,
                "backward": 0.04,
                "optimizer": 0.005,
                "evaluation": 0.0,
                "generation": 0.0,
                "other": 0.015,
                "micro_batches": 1,
                "rollout": 0,
                "batch_size": 8,
                "workers_started": 0,
                "skipped": False,
                "sampled": step % EVERY == 0,
                "loss": nan if step == 7 else 2.0 / (1 + step),
                "lr": 1e-3,
                "rss": 500.0 + step,
                "counted": True,
            }
        )
        start, end = began + 0.06 + late, began + 0.06 + LATE_S + 0.005
        calls.append(
            {
                "step": step,
                "ts": _us(end),
                "group": "0",
                "seq": step + 1,
                "op": "all_reduce",
                "bytes": 4096,
                "dtype": "float32",
                "shape": "1024",
                "start": _us(start),
                "duration": end - start,
                "wait": end - start - 0.001,
                "phase": "backward",
                "wait_phase": "backward",
                "state": "completed",
                "seen_by": "python",
            }
        )
        if step % EVERY == 0:
            for seq, (module, first, took) in enumerate(
                (("Net.a", 0.03, 0.01), ("Net.b", 0.04, 0.012), ("Net", 0.028, 0.025))
            ):
                modules.append(
                    {
                        "step": step,
                        "ts": _us(began + first + took),
                        "seq": seq,
                        "module": module,
                        "stage": "forward",
                        "duration": took,
                        "self_duration": took if "." in module else 0.003,
                        "device": "cpu",
                        "allocated": 500.0,
                        "allocated_delta": 0.0,
                        "compiled": False,
                        "recomputed": False,
                        "phase": "train",
                    }
                )
    group = {"ts": _us(0), "group": "0", "group_desc": "default_pg", "backend": "gloo", "group_rank": rank,
             "size": NUM_RANKS, "ranks": f"0-{NUM_RANKS - 1}"}  # fmt: skip
    return [
        (Steps, _rows(Steps, steps)),
        (Collectives, _rows(Collectives, calls)),
        (TorchTrace, _rows(TorchTrace, modules)),
        (Groups, _rows(Groups, [group])),
    ]


@contextmanager
def recorded_job(folder: Path) -> Iterator[RecordedJob]:
    """The job, its host servers running; `ended` is a folder beside them with rank 0 of another job."""
    for rank in range(NUM_RANKS):
        add_target(folder / str(rank // 2), f"host{rank // 2}", 910_000 + rank, rank, NUM_RANKS, tables_of(rank))
    add_target(folder / "ended", "host9", 919_999, 0, 1, tables_of(0))
    (ended,) = (folder / "ended").glob("probe-*/*")
    addresses = tuple(f"127.0.0.1:{free_port()}" for _ in range(2))
    command = [sys.executable, "-m", "benchmarks.simulated", str(folder), *addresses]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline() == "ready\n"
        try:
            yield RecordedJob(addresses, ended)
        finally:
            serving.terminate()
