"""Two ranks on gloo, started by `mp.spawn`, or by a launcher that sets RANK.

    spawned_ranks.py FOLDER

Each trains alone until there is a file `join` in FOLDER; then the ranks form a process group and train together, until
there is a file `stop`. `raise-RANK` makes that rank raise; with a file `sit` it then waits in an exit handler. Each
writes its PID to `pid-RANK`, and its step to `step-RANK`.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

NUM_RANKS = 2


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    atexit.register(sit, folder)
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while not (dist.is_initialized() and stopped(folder)):
        if not dist.is_initialized() and (folder / "join").exists():
            store = None if "MASTER_PORT" in os.environ else f"file://{folder}/meeting"
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=NUM_RANKS)
        if (folder / f"raise-{rank}").exists():
            raise RuntimeError(f"rank {rank} has had enough")
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        step += 1
        (folder / f"step-{rank}").write_text(str(step))
        time.sleep(0.01)
    os._exit(0)  # at exit torch ends one gloo job in ten by std::terminate


def stopped(folder: Path) -> bool:
    """Return whether rank 0 has seen the file; the same answer on all ranks."""
    flag = torch.tensor([float((folder / "stop").exists())])
    dist.broadcast(flag, 0)
    return bool(flag.item())


def sit(folder: Path) -> None:
    while (folder / "sit").exists():
        time.sleep(0.05)


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(int(os.environ["RANK"]), Path(sys.argv[1]))
    else:
        mp.spawn(main, (Path(sys.argv[1]),), nprocs=NUM_RANKS)
