"""One rank of a gloo job of three, started by torchrun, with its recorder in FOLDER: `peers_and_phases.py FOLDER`.

First every way to send and receive, and pipelines of torch.distributed.pipelining; then a training loop with a
collective in every phase of its steps, rank 0 a little late before each; each without the recorder, then with it.

Writes `done-RANK.json` with its results; ends when there is a file `stop` in FOLDER.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from tests.targets.collectives import FOLDER, start_recorder

STEPS, MICRO_BATCHES = 4, 3
LATE_S = 0.01
#: What is said to the other groups' ranks: two that are not first in the job.
PAIR = [1, 2]


def pairs(group: dist.ProcessGroup) -> float:
    """Return what rank 2 received from rank 1, in a group in which these are 0 and 1."""
    rank, tensor = dist.get_rank(), torch.zeros(3)
    got = 0.0
    if rank == 1:
        dist.send(torch.ones(3), 2, group=group)
        dist.isend(torch.ones(3) * 2, 2, group=group).wait()
        dist.send(torch.ones(3) * 3, 2, group=group)
        dist.send_object_list([{"some": "thing"}], 2, group=group)
        dist.recv(tensor, 2, group=group)
        got += float(tensor.sum())
    elif rank == 2:
        dist.recv(tensor, 1, group=group)
        got += float(tensor.sum())
        dist.irecv(tensor, 1, group=group).wait()
        got += float(tensor.sum())
        assert dist.recv(tensor, group=group) == 1
        got += float(tensor.sum())
        objects = [None]
        dist.recv_object_list(objects, 1, group=group)
        got += len(str(objects))
        dist.send(tensor, 1, group=group)
    return got


def ring() -> float:
    rank, size, other = dist.get_rank(), dist.get_world_size(), torch.zeros(5)
    operations = [
        dist.P2POp(dist.isend, torch.ones(5) * rank, (rank + 1) % size),
        dist.P2POp(dist.irecv, other, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return float(other.sum())


def pipeline(make: Callable[..., ScheduleGPipe | Schedule1F1B]) -> list[float]:
    """Run steps of a pipeline with a stage on each rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    module = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = make(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    for _ in range(STEPS):
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(torch.ones(6, 4))
        elif rank == size - 1:
            schedule.step(target=torch.zeros(6, 4))
        else:
            schedule.step()
        optimizer.step()
    return [float(parameter.sum()) for parameter in module.parameters()]


def sends(group: dist.ProcessGroup) -> list[object]:
    return [pairs(group), ring(), pipeline(ScheduleGPipe), pipeline(Schedule1F1B)]


class Late:
    """All-reduces in a separate group, to which rank 0 comes late."""

    def __init__(self) -> None:
        self.group = dist.new_group()
        self.sum = 0.0

    def __call__(self, asynchronous: bool = False) -> dist.Work | None:
        if dist.get_rank() == 0:
            time.sleep(LATE_S)
        tensor = torch.ones(2)
        work = dist.all_reduce(tensor, group=self.group, async_op=asynchronous)
        self.sum += float(tensor.sum()) if work is None else 0.0
        return work


class Model(nn.Module):
    def __init__(self, late: dict[str, Late]) -> None:
        super().__init__()
        self.linear, self.late, self.late_in = nn.Linear(4, 4), late, "forward"
        self.work: dist.Work | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.late[self.late_in]()
        outputs = self.linear(inputs)
        if outputs.requires_grad:
            outputs.register_hook(self.in_backward)
        return outputs

    def in_backward(self, gradient: torch.Tensor) -> None:
        self.late["backward"]()
        self.work = self.late["asynchronous"](asynchronous=True)


class Optimizer(torch.optim.SGD):
    late: dict[str, Late]

    def step(self, closure: object = None) -> None:
        self.late["optimizer"]()
        super().step()


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, late: Late) -> None:
        self.late = late

    def __len__(self) -> int:
        return 100

    def __getitem__(self, number: int) -> torch.Tensor:
        self.late()
        return torch.full((4,), float(number))


def generate(model: Model, inputs: torch.Tensor) -> None:
    with torch.no_grad():
        model.late_in = "generation"
        model(inputs)


def train(late: dict[str, Late], num_steps: int) -> list[float]:
    """Train with two micro-batches per step, and all phases in each of them."""
    torch.manual_seed(1)
    model = Model(late)
    optimizer = Optimizer(model.parameters(), lr=0.01, momentum=0.9)
    optimizer.late = late
    batches = iter(torch.utils.data.DataLoader(Samples(late["data"])))
    for _ in range(num_steps):
        late["other"]()
        for _ in range(2):
            inputs = next(batches)
            model.late_in = "forward"
            model(inputs).square().mean().backward()
        model.work.wait()
        optimizer.step()
        with torch.no_grad():
            model.late_in = "evaluation"
            model(inputs)
        generate(model, inputs)
        beside = threading.Thread(target=late["beside"])
        beside.start()
        beside.join()
    return [float(parameter.sum()) for parameter in model.parameters()]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    pair = dist.new_group(PAIR)
    names = ["data", "forward", "backward", "optimizer", "evaluation", "generation", "other", "asynchronous", "beside"]
    late = {name: Late() for name in names}
    without = [*sends(pair), train(late, STEPS)]
    dist.barrier()
    start_recorder()
    dist.barrier()
    told: dict[str, object] = {"without": without, "with": [*sends(pair), train(late, STEPS)]}
    ddp = dist.new_group()
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4), process_group=ddp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        model(torch.ones(2, 4)).sum().backward()
        time.sleep(LATE_S)
        optimizer.step()
    told["names"] = {name: one.group.group_name for name, one in late.items()} | {"ddp": ddp.group_name}
    path = FOLDER / f"done-{dist.get_rank()}.json"
    path.with_suffix(".new").write_text(json.dumps(told))
    path.with_suffix(".new").rename(path)
    while not (FOLDER / "stop").exists():
        time.sleep(0.05)
    os._exit(0)


if __name__ == "__main__":
    main()
