"""One rank of a gloo job in which ranks can be slowed down while it runs, started by torchrun.

    job.py FOLDER KIND [NUM_HOSTS]

Ends at the step that the plan names, if there is a file `stop` in FOLDER. With NUM_HOSTS its ranks report that many
hosts, each by a name of its own.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import data_parallel
import pipeline
import tensor_parallel
import torch
import torch.distributed as dist
import trainer
import watched
from planted import Planted

import probe_agent

KINDS = {
    "ddp": data_parallel.ddp,
    "accumulate": data_parallel.accumulate,
    "compiled": data_parallel.compiled,
    "fsdp": data_parallel.fsdp,
    "tp": tensor_parallel.tensor_parallel,
    "tp-hand": tensor_parallel.by_hand,
    "pipe": pipeline.pipelining,
    "pipe-hand": pipeline.by_hand,
    "pipe-dp": pipeline.by_hand_with_replicas,
    "trainer": trainer.trainer,
    "watched": watched.watched,
}
CLONE_NEWUTS = 0x04000000


def on_hosts(num_hosts: int) -> None:
    """Give the hosts names, the ranks in order."""
    host = int(os.environ["RANK"]) * num_hosts // int(os.environ["WORLD_SIZE"])
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), "unshare")
    socket.sethostname(f"node{host}")


def main() -> None:
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    if sys.argv[3:]:
        on_hosts(int(sys.argv[3]))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    planted = Planted(folder, dist.get_rank(), dist.get_world_size())
    probe_agent.start()
    (folder / f"pid-{planted.rank}.new").write_text(str(os.getpid()))
    (folder / f"pid-{planted.rank}.new").rename(folder / f"pid-{planted.rank}")
    KINDS[kind](planted)


if __name__ == "__main__":
    main()
