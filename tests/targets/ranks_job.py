"""One rank of a gloo job that trains, started by torchrun, as if alone on its host: with its own folder and host
server.

    ranks_job.py FOLDER ADDRESS…     the rank's recorder keeps its files in FOLDER/RANK, its server listens on ADDRESS
    ranks_job.py FOLDER              the environment decides whether there is a recorder; if it sets RANKS_HOST, a
                                     folder, all ranks keep their files there, as on one host

The ranks meet as torchrun arranges, or at the URL in RANKS_MEET.

Trains until there is a file `stop` in FOLDER, all ranks for the same number of steps; writes `done-RANK.json` with what
it learnt and what it would have learnt alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import own_recorder
import torch
import torch.distributed as dist
from torch import nn

from probe_agent.recorder.ring import folder as folders

FOLDER, ADDRESSES = Path(sys.argv[1]), sys.argv[2:]


def train(model: nn.Module, is_over) -> int:
    """Train until `is_over(step)`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while not is_over(step):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        step += 1
    return step


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


def stopped(step: int) -> bool:
    """Return whether rank 0 has seen the file; the same answer on all ranks."""
    time.sleep(0.02)
    flag = torch.tensor([float((FOLDER / "stop").exists())])
    dist.broadcast(flag, 0)
    return bool(flag.item())


def main() -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if ADDRESSES:
        own = FOLDER / str(rank)
        own.mkdir(exist_ok=True)
        os.environ["PROBE_LISTEN"] = ADDRESSES[rank]
        os.environ["LOCAL_RANK"] = "0"  # on its host
        folders.BASES = (str(own),)
    elif "RANKS_HOST" in os.environ:
        folders.BASES = (os.environ["RANKS_HOST"],)
    if ADDRESSES or "RANKS_HOST" in os.environ:
        own_recorder.start()
    dist.init_process_group(
        "gloo", init_method=os.environ.get("RANKS_MEET"), rank=rank, world_size=int(os.environ["WORLD_SIZE"])
    )
    model = mlp()
    steps = train(nn.parallel.DistributedDataParallel(model), stopped)
    alone = mlp()
    train(alone, lambda step: step == steps)
    learnt = [[parameter.double().sum().item() for parameter in each.parameters()] for each in (model, alone)]
    (FOLDER / f"done-{rank}.json").write_text(json.dumps([steps, *learnt]))
    sys.stdout.flush()
    os._exit(0)  # at exit torch ends one gloo job in ten by std::terminate


if __name__ == "__main__":
    main()
