"""A rank of a job that hangs: after 20 collectives rank 1 sleeps, and the others wait for it in the next one.

python hung_job.py RANK WORLD_SIZE STORE
"""

import sys
import time

import torch
import torch.distributed as dist

rank, world_size = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=world_size)
for _ in range(20):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.02)
print("hangs", flush=True)
if rank == 1:
    time.sleep(600)
dist.all_reduce(torch.ones(1))
