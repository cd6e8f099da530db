"""A job of one process that comes to a halt: `python halting.py deadlock` or `queue`; prints `ready` before it."""

import queue
import sys
import threading
import time

import torch

first, second = threading.Lock(), threading.Lock()
batches = queue.Queue()


def log(taken):
    with second:
        taken.set()
        time.sleep(0.5)
        with first:
            pass


def halt(how):
    print("ready", flush=True)
    if how == "queue":
        batches.get()
    taken = threading.Event()
    threading.Thread(target=log, args=(taken,), name="logger", daemon=True).start()
    taken.wait()
    with first:
        time.sleep(1)
        with second:
            pass


if __name__ == "__main__":
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        model(torch.ones(4)).sum().backward()
        optimizer.step()
    halt(sys.argv[1])
