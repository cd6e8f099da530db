"""Jobs of four gloo ranks in a grid of 2 x 2 that hang, each for a reason of its own, and keep writing their dumps.

    python hanging_ranks.py FOLDER FAULT…

Each rank writes what torch's Flight Recorder has to FOLDER/FAULT/nccl_trace_rank_RANK, as torch does it at a timeout.
"""

import os
import signal
import sys
import threading
import time

import torch
import torch._dynamo  # torch imports it when it writes stacks: once, before the ranks are forked
import torch.distributed as dist

WORLD_SIZE = 4


def train(rank: int, fault: str, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD_SIZE)
    rows = [dist.new_group([0, 1], group_desc="tp0"), dist.new_group([2, 3], group_desc="tp1")]
    columns = [dist.new_group([0, 2], group_desc="dp0"), dist.new_group([1, 3], group_desc="dp1")]
    tp, dp = rows[rank // 2], columns[rank % 2]
    threading.Thread(target=keep_dumping, args=(f"{folder}/nccl_trace_rank_{rank}",), daemon=True).start()
    for step in range(8):
        is_last = step == 7
        if is_last and fault == "absent" and rank == 3:
            wait_for_ever()
        if is_last and fault == "order" and rank in (0, 3):
            dist.all_reduce(torch.ones(8), group=dp)
            dist.all_reduce(torch.ones(4), group=tp)
        else:
            dist.all_reduce(torch.ones(4), group=tp)
            dist.all_reduce(torch.ones(8), group=dp)
        if is_last and fault == "operation" and rank == 2:
            dist.broadcast(torch.ones(1), 0)
        else:
            dist.all_reduce(torch.ones(1))
    wait_for_ever()


def keep_dumping(path: str) -> None:
    while True:
        with open(path + ".new", "wb") as file:
            file.write(torch._C._distributed_c10d._dump_fr_trace(True, True, False))
        os.replace(path + ".new", path)
        time.sleep(0.3)


def wait_for_ever() -> None:
    while True:
        time.sleep(600)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    for fault in sys.argv[2:]:
        folder = os.path.join(sys.argv[1], fault)
        os.makedirs(folder)
        for rank in range(WORLD_SIZE):
            if os.fork() == 0:
                train(rank, fault, folder)
    print("started", flush=True)
    wait_for_ever()
