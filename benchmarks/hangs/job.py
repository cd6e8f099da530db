"""A job of four gloo ranks that trains, and in which something goes wrong on rank 2 in its 200th step.

    python -m benchmarks.hangs.job FOLDER FAULT

Each rank is a process of its own, writes its PID to FOLDER/rank_R, and makes FOLDER/trains_R when its loop begins; a
healthy job trains on until it is killed.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

WORLD_SIZE, CULPRIT, LAST_STEP = 4, 2, 200
STEP_S = 0.02


class Numbers(Dataset[torch.Tensor]):
    """Batches without end; from one on, the item is stuck where `stuck` says so."""

    def __init__(self, stuck: Callable[[], None] | None, worker_only: bool) -> None:
        self.stuck, self.worker_only = stuck, worker_only

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if (self.stuck is not None) and index >= LAST_STEP * 8:
            self.stuck()
        return torch.ones(16)


def for_ever() -> None:
    while True:
        time.sleep(3600)


def lock() -> None:
    held = threading.Lock()
    held.acquire()
    threading.Thread(target=for_ever, name="keeper", daemon=True).start()
    with held:
        pass


def read_pipe() -> None:
    reader, _ = os.pipe()
    os.read(reader, 1)


def hold_gil() -> None:
    ctypes.PyDLL(None).sleep(3600)


def spin() -> None:
    while True:
        pass


class Faults:
    """What may go wrong, each a function of the rank's own calls."""

    def __init__(self) -> None:
        self.pair = dist.new_group([0, CULPRIT], group_desc="pair")
        self.other = dist.new_group([CULPRIT, 0], group_desc="other")

    def sleep(self) -> None:
        for_ever()

    def swallowed(self) -> None:
        try:
            raise ValueError("a batch without labels")
        except ValueError:
            dist.barrier()

    def stopped(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def lock(self) -> None:
        lock()

    def pipe(self) -> None:
        read_pipe()

    def gil(self) -> None:
        hold_gil()

    def spins(self) -> None:
        spin()

    def operation(self) -> None:
        dist.all_gather([torch.ones(4) for _ in range(WORLD_SIZE)], torch.ones(4))

    def send(self) -> None:
        dist.send(torch.ones(4_000_000), 0)


def train(rank: int, folder: Path, fault: str) -> None:
    (folder / f"rank_{rank}").write_text(str(os.getpid()))
    world_size = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    faults = Faults()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    is_culprit = rank == CULPRIT
    stuck = for_ever if is_culprit and fault in ("loader", "worker") else None
    batches = iter(DataLoader(Numbers(stuck, fault == "worker"), batch_size=8, num_workers=int(fault == "worker")))
    (folder / f"trains_{rank}").touch()
    for step in itertools.count(1):
        batch = next(batches)
        loss = model(batch).mean()
        loss.backward()
        if step == LAST_STEP:
            if fault == "order" and rank in (0, CULPRIT):
                groups = [faults.pair, faults.other]
                for group in groups if is_culprit else groups[::-1]:
                    dist.all_reduce(torch.ones(1), group=group)
            elif is_culprit and hasattr(faults, fault):
                getattr(faults, fault)()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        if fault == "slow" and step >= LAST_STEP and is_culprit:
            time.sleep(1.5)
        time.sleep(STEP_S)


def start(folder: Path, fault: str) -> list[subprocess.Popen[bytes]]:
    """The four ranks, as processes."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hangs.job", str(folder), fault],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(WORLD_SIZE),
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(WORLD_SIZE)
    ]


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]), Path(sys.argv[1]), sys.argv[2])
    else:
        for process in start(Path(sys.argv[1]), sys.argv[2]):
            process.wait()
