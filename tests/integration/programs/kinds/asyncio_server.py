"""An asyncio server whose model takes part of the time: requests come over a socket, the rest is waiting.

Holds: calls of the model are found although the loop sleeps most of the time.
"""

import asyncio
import os
import time

import torch
from paced import Paced, named
from torch import nn
from truth import Truth

CALLS = 20
truth = Truth(CALLS)
torch.manual_seed(15)
torch.set_num_threads(1)
model = named(nn.Sequential(nn.Linear(4, 8), Paced(truth, nn.Linear(8, 1), 0.003))).eval()


async def serve(reader, writer):
    while line := await reader.readline():
        with torch.no_grad(), truth.clock("forward"):
            output = model(torch.tensor([float(number) for number in line.split()]))
        truth.step()
        writer.write(f"{output.item():.9g}\n".encode())
        await writer.drain()
    writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    answers = []
    until = time.monotonic() + float(os.environ.get("PROGRAM_WARM_UP", "0"))
    number = 0
    while time.monotonic() < until or number < CALLS:
        warm = time.monotonic() < until
        writer.write(b"1 2 3 4\n" if warm else f"{number} 1 2 3\n".encode())
        answer = await reader.readline()
        if not warm:
            answers.append(answer)
            number += 1
        await asyncio.sleep(0.02)
    writer.close()
    server.close()
    return answers


answers = asyncio.run(main())
print(len(answers), "answers")
truth.tell(answers[-CALLS:])
