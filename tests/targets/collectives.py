"""One rank of a gloo job, started by torchrun, with its recorder in FOLDER.

    collectives.py FOLDER every     every way to call a collective, then wait
    collectives.py FOLDER hang      the last rank skips one all_reduce, the others wait for it

Writes `done-RANK.json` with its results; ends when there is a file `stop` in FOLDER.
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
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed import all_reduce as reference_of_before
from torch.distributed.fsdp import fully_shard

from probe_agent.recorder.ring import folder as folders

FOLDER = Path(sys.argv[1])


def start_recorder() -> None:
    """Start recording; return once everything that will be patched is."""
    folders.BASES = (str(FOLDER),)
    own_recorder.start()
    while not list(FOLDER.glob(f"*/{os.getpid()}-*/{folders.TARGET}")):
        time.sleep(0.005)
    time.sleep(0.3)


def python_calls(group: dist.ProcessGroup, sums: dict[str, float]) -> None:
    """Call every function of torch.distributed, each with tensors of its own size."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def ones(length: int) -> torch.Tensor:
        return torch.ones(length) * (rank + 1)

    def note(name: str, *tensors: torch.Tensor) -> None:
        sums[name] = float(sum(tensor.double().sum() for tensor in tensors))

    tensor = ones(11)
    reference_of_before(tensor, group=group)
    note("all_reduce", tensor)
    tensor = ones(12)
    dist.broadcast(tensor, 0, group=group)
    note("broadcast", tensor)
    tensor = ones(13)
    dist.reduce(tensor, 0, group=group)
    gathered = [torch.zeros(14) for _ in range(size)]
    dist.all_gather(gathered, ones(14), group=group)
    note("all_gather", *gathered)
    whole = torch.zeros(15 * size)
    dist.all_gather_into_tensor(whole, ones(15), group=group)
    note("all_gather_into_tensor", whole)
    part = torch.zeros(16)
    dist.reduce_scatter_tensor(part, ones(16 * size), group=group)
    note("reduce_scatter_tensor", part)
    part = torch.zeros(17)
    dist.reduce_scatter(part, [ones(17) for _ in range(size)], group=group)
    note("reduce_scatter", part)
    whole = torch.zeros(18 * size)
    dist.all_to_all_single(whole, ones(18 * size), group=group)
    note("all_to_all_single", whole)
    dist.gather(ones(19), [torch.zeros(19) for _ in range(size)] if rank == 0 else None, group=group)
    dist.scatter(part := torch.zeros(20), [ones(20)] * size if rank == 0 else None, src=0, group=group)
    note("scatter", part)
    if rank == 0:
        dist.send(ones(21), 1, group=group)
    elif rank == 1:
        dist.recv(tensor := torch.zeros(21), 0, group=group)
        note("recv", tensor)
    other = torch.zeros(22)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, ones(22), (rank + 1) % size, group=group),
            dist.P2POp(dist.irecv, other, (rank - 1) % size, group=group),
        ]
    ):
        work.wait()
    note("batch_isend_irecv", other)
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    dist.barrier(group=group)


def asynchronous(group: dist.ProcessGroup) -> None:
    """Let rank 0 wait for the others, which are 0.3 s late; then rank 0 waits long after completion."""
    if dist.get_rank():
        time.sleep(0.3)
    dist.all_reduce(torch.ones(31), group=group, async_op=True).wait()
    work = dist.all_reduce(torch.ones(32), group=group, async_op=True)
    while not work.is_completed():
        time.sleep(0.01)
    time.sleep(0.1)
    work.wait()


def train(model: nn.Module, steps: int) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
    return float(loss)


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


def breaks_and_graphs() -> list[int]:
    counters = torch._dynamo.utils.counters
    return [sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]]


def compiled(group: dist.ProcessGroup) -> list[int]:
    """Call collectives inside compiled functions, with a graph break by torch itself (async_op) and without."""

    def inside(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor * 2
        dist.all_reduce(tensor, group=group)
        return tensor + 1

    def breaks(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor * 2
        dist.all_reduce(tensor, group=group, async_op=True).wait()
        return tensor + 1

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for length in (41, 41):
        torch.compile(inside, backend="eager", fullgraph=True)(torch.ones(length))
        torch.compile(breaks, backend="eager")(torch.ones(length))
    model = torch.compile(nn.parallel.DistributedDataParallel(mlp()), backend="aot_eager")
    train(model, 2)
    return breaks_and_graphs()


def every() -> dict[str, object]:
    found: dict[str, object] = {}
    without: dict[str, float] = {}
    with_us: dict[str, float] = {}
    groups = {name: dist.new_group(group_desc=name) for name in ("old", "calls", "async", "functional", "compiled")}
    python_calls(groups["old"], without)
    found["compiled_without"] = compiled(groups["compiled"])
    found["ddp_without"] = train(nn.parallel.DistributedDataParallel(mlp()), 3)
    start_recorder()
    python_calls(groups["old"], with_us)
    python_calls(groups["calls"], {})
    asynchronous(groups["async"])
    dist.barrier(group=groups["old"])
    time.sleep(0.3 * dist.get_rank())
    for _ in range(4):
        functional.wait_tensor(functional.all_reduce(torch.ones(51), "sum", groups["functional"]))
    found["compiled_with"] = compiled(groups["compiled"])
    ddp = dist.new_group(group_desc="ddp")
    found["ddp_with"] = train(nn.parallel.DistributedDataParallel(mlp(), process_group=ddp), 3)
    found["fsdp"] = train(fully_shard(mlp()), 3)
    found["names"] = {name: group.group_name for name, group in (*groups.items(), ("ddp", ddp))}
    return {**found, "without": without, "with": with_us}


def hang() -> dict[str, object]:
    dist.barrier()
    start_recorder()
    dist.all_reduce(torch.ones(61))
    if dist.get_rank() < dist.get_world_size() - 1:
        dist.all_reduce(torch.ones(62))
    return {}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    told = {"every": every, "hang": hang}[sys.argv[2]]()
    path = FOLDER / f"done-{rank}.json"
    path.with_suffix(".new").write_text(json.dumps(told))
    path.with_suffix(".new").rename(path)
    while not (FOLDER / "stop").exists():
        time.sleep(0.05)
    os._exit(0)


if __name__ == "__main__":
    main()
