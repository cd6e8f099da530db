"""Jobs that wait for another process or thread: `python stuck_training.py NAME GO [RANK]`; they continue once GO
exists.

    all_reduce   two ranks on gloo; rank 1 does not join the collective
    loader       a DataLoader whose worker is slow
    pulses       the same, with a worker that releases the GIL for microseconds, often

Each prints `ready` just before it waits, and its result in the end.
"""

import os
import sys
import threading
import time

NAME, GO = sys.argv[1:3]


def wait_for_go():
    while not os.path.exists(GO):
        time.sleep(0.01)


def all_reduce():
    import torch
    import torch.distributed as dist

    rank = int(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{GO}.rendezvous", rank=rank, world_size=2)
    part = torch.arange(4.0) * (rank + 1)
    say_ready()
    if rank == 1:
        wait_for_go()
    dist.all_reduce(part)
    dist.destroy_process_group()
    return part.tolist()


def loader():
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, at):
            if at == 4:
                wait_for_go()
            return torch.tensor(float(at))

    batches = iter(DataLoader(Slow(), batch_size=2, num_workers=1))
    found = [next(batches).tolist() for _ in range(2)]
    say_ready()
    return found + [batch.tolist() for batch in batches]


def count(step):
    counted = 0

    def work():
        nonlocal counted
        while counted % 1000 != 0 or not os.path.exists(GO):
            counted += step()

    thread = threading.Thread(target=work, name="worker")
    thread.start()
    say_ready()
    thread.join()
    return counted % 1000


def pulses():
    return count(lambda: len(os.fspath(GO)) > 0 and os.path.exists("/") and 1)


def say_ready():
    print("ready", flush=True)


print(globals()[NAME](), flush=True)
