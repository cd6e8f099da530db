"""Jobs of four gloo ranks in a grid of 2 x 2 that hang, each for a reason of its own, and write their dumps.

    python hanging_ranks.py FOLDER FAULT…

Each rank writes its PID to FOLDER/FAULT/RANK.pid, and what torch's Flight Recorder has to
FOLDER/FAULT/nccl_trace_rank_RANK, as torch does it at a timeout. The job `few` waits for its last rank, two ranks of
`sends` send to each other, `trains` goes on, and so does `times_out`, which gives up soon, until there is a file
`stop`; these write no dumps.
"""

import ctypes
import os
import pickle
import signal
import socket
import sys
import threading
import time
from datetime import timedelta

import torch
import torch._dynamo  # torch imports it when it writes stacks: once, before the ranks are forked
import torch.distributed as dist

WORLD_SIZE = 4


def start(rank: int, fault: str, folder: str) -> None:
    with open(f"{folder}/new_{rank}", "w") as file:
        file.write(str(os.getpid()))
    os.rename(file.name, f"{folder}/{rank}.pid")
    if fault == "few":
        dist.init_process_group("gloo", rank=rank, world_size=WORLD_SIZE)
    elif fault in ("trains", "times_out"):
        train(rank, fault, folder)
    elif fault == "sends":
        send_to_each_other(rank, folder)
    else:
        hang(rank, fault, folder)


def train(rank: int, fault: str, folder: str) -> None:
    timeout = timedelta(seconds=5) if fault == "times_out" else None
    init = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=WORLD_SIZE, timeout=timeout)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        if rank == 3 and os.path.exists(f"{folder}/stop"):
            wait_for_ever()
        model(torch.ones(4)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)


def send_to_each_other(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD_SIZE)
    dist.all_reduce(torch.ones(1))
    if rank in (1, 2):
        dist.send(torch.ones(4), 3 - rank)
    else:
        dist.recv(torch.ones(4), 1 if rank == 0 else 2)
    wait_for_ever()


def hang(rank: int, fault: str, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD_SIZE)
    rows = [dist.new_group([0, 1], group_desc="tp0"), dist.new_group([2, 3], group_desc="tp1")]
    columns = [dist.new_group([0, 2], group_desc="dp0"), dist.new_group([1, 3], group_desc="dp1")]
    tp, dp = rows[rank // 2], columns[rank % 2]
    threading.Thread(target=keep_dumping, args=(f"{folder}/nccl_trace_rank_{rank}",), daemon=True).start()
    for step in range(8):
        is_last = step == 7
        if is_last and fault == "absent" and rank == 3:
            wait_for_ever()
        if is_last and fault == "gil" and rank == 3:
            keep_the_gil(f"{folder}/keep")
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
    """Write a dump now and then until nothing has been called for a while."""
    entries: list[dict[str, int]] = []
    while not entries or entries[-1]["time_created_ns"] * 1e-9 > time.time() - 3.0:
        dump = torch._C._distributed_c10d._dump_fr_trace(True, True, False)
        with open(path + ".new", "wb") as file:
            file.write(dump)
        os.replace(path + ".new", path)
        entries = pickle.loads(dump).get("entries", [])
        time.sleep(0.3)


def keep_the_gil(path: str) -> None:
    """Sleep until there is such a file, and then in C with the GIL."""
    while not os.path.exists(path):
        time.sleep(0.1)
    ctypes.PyDLL(None).sleep(600)


def wait_for_ever() -> None:
    while True:
        time.sleep(600)


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True")
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    for fault in sys.argv[2:]:
        folder = os.path.join(sys.argv[1], fault)
        os.makedirs(folder)
        for rank in range(WORLD_SIZE - (fault == "few")):
            if os.fork() == 0:
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE))
                start(rank, fault, folder)
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)  # has threads: after all forks
    print("started", flush=True)
    wait_for_ever()
