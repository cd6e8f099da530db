"""A job with stacks of every kind: values in its frames, tasks of an event loop, a forked worker.

It waits for the end of its standard input, then prints which code of its values ran: none, if nobody has asked them.
"""
# ruff: noqa: F841  # its variables are there to be looked at

import asyncio
import os
import sys
import threading

try:
    import numpy
except ImportError:  # another Python than that of the tests
    numpy = None

asked = []


class Private:
    """Whoever asks for its text or its length runs code of the job."""

    def __repr__(self):
        asked.append("repr")
        return "private"

    __str__ = __repr__

    def __len__(self):
        asked.append("len")
        return 1

    def __getattr__(self, name):
        asked.append(name)
        raise AttributeError(name)


class OwnList(list):
    def __iter__(self):
        asked.append("iter")
        return super().__iter__()

    __repr__ = Private.__repr__


async def produce(queue):
    await queue.get()


async def collect(queue):
    await asyncio.gather(*(asyncio.create_task(produce(queue), name=f"producer {n}") for n in range(2)))


async def serve(started):
    collector = asyncio.create_task(collect(asyncio.Queue()), name="collector")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    started.set()
    await collector


def train(steps, api_token="hunter2-of-the-variable"):
    learning_rate = 0.25
    words = ["--steps", "7", "--api-key", "hunter2-of-the-list"]
    headers = {"Authorization": "Bearer hunter2-of-the-header", "password": "hunter2-of-the-key"}
    address = "https://ada:hunter2-of-the-address@host/path"
    text = "x" * 5000
    weights = numpy and numpy.zeros((64, 32), dtype="float32")
    nested = [[[[1]]]]
    private, own_list = Private(), OwnList([1])
    return sys.stdin.read()


started = threading.Event()
threading.Thread(target=asyncio.run, args=(serve(started),), name="loop", daemon=True).start()
started.wait()
worker = os.fork()
if not worker:
    threading.current_thread().name = "worker"
    sys.stdin.read()
    os._exit(0)
print("ready", worker, flush=True)
train(3)
os.waitpid(worker, 0)
print("asked", asked, flush=True)
