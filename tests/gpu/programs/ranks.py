"""Ranks of one job that share one device: DistributedDataParallel over the backend that is asked for."""

import os

import torch
import torch.distributed as dist
from control import Control, Net, deterministic, digest

STEPS, READY_AT, WAIT_AT = 80, 15, 40


def main():
    control = Control(__doc__, backend="gloo")
    backend = control.args.backend if control.on_gpu else "gloo"
    dist.init_process_group(backend)
    rank = dist.get_rank()
    deterministic()
    model = torch.nn.parallel.DistributedDataParallel(Net().to(control.device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    batch = torch.randn(64, 256, device=control.device)
    pids = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if step == READY_AT and rank == 0:
            control.say("ready", pids=pids)
        if step == WAIT_AT:
            control.wait("attached")
    control.synchronize()
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, digest(model))
    if rank == 0:
        control.say("trained", digests=digests)
    control.wait("stop")
    if rank == 0:
        control.say("final")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
