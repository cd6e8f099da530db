"""Job of four gloo ranks that trains, and in which something goes wrong on rank 2.

    python -m benchmarks.hangs.job FOLDER FAULT

Each rank is a process of its own, writes its PID to FOLDER/rank_R, and the number of each step to FOLDER/trains_R. It
goes wrong in the step whose number is in FOLDER/last. A healthy job trains on until it is killed, and does every 200
steps what its name says.
"""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from threading import Timer
from typing import BinaryIO

import torch
import torch._dynamo  # the optimizer imports it: once, before the ranks are forked
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore, _WorkerServer
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.multiprocessing.spawn import spawn
from torch.utils.data import DataLoader, Dataset

from .stuck import die, fill_cgroup, for_ever, hold_gil, lock, read_pipe, rlock, spin, wait_in_the_kernel

WORLD_SIZE, CULPRIT = 4, 2
STEP_S = 0.02
BATCH_SIZE = 8
#: A healthy job pauses every so many steps.
PAUSE_STEPS = 200
#: A healthy job may have to wait for its storage so long.
STORAGE_S = 90.0
#: Jobs whose ranks meet at a store of its own process; those of others meet at a file.
BY_STORE = ("few", "gone_store")
#: Jobs whose groups give up early; the launcher of the second one ends the rank that lives, as torchrun does.
GIVES_UP = ("timed_out", "ended_by_launcher")
GIVES_UP_AFTER = timedelta(seconds=15)


def last_step(folder: Path) -> float:
    """Return the step in which it goes wrong, once that has been decided."""
    path = folder / "last"
    return int(path.read_text()) if path.exists() else float("inf")


class Numbers(Dataset[torch.Tensor]):
    """Batches without end; from one on, the item is stuck where `stuck` says so. With `keeps` it leaks."""

    def __init__(self, folder: Path, stuck: Callable[[], None] | None, *, keeps: bool = False) -> None:
        self.folder, self.stuck, self.keeps = folder, stuck, keeps
        self.kept: list[bytes] = []

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.stuck is not None and index >= last_step(self.folder) * BATCH_SIZE:
            self.stuck()
        if self.keeps:
            self.kept.append(bytes(20_000))
        return torch.ones(16)


class Faults:
    """What may go wrong, each a function of the rank's own calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pair = dist.new_group([0, CULPRIT], group_desc="pair")
        self.other = dist.new_group([CULPRIT, 0], group_desc="other")

    def save(self) -> None:
        path = self.folder / "checkpoint.pt"
        os.mkfifo(path)
        os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # as storage that takes a little, and then nothing
        torch.save(torch.ones(4_000_000), path)

    def rlock(self) -> None:
        rlock()

    def killed(self) -> None:
        die()

    def segv(self) -> None:
        faulthandler.disable()
        ctypes.string_at(0)

    def aborted(self) -> None:
        os.abort()

    def memory(self) -> None:
        """As under `ulimit -v`."""
        resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
        kept = []
        while True:
            kept.append(bytearray(2**28))

    def exited(self) -> None:
        os._exit(0)

    def raised(self) -> None:
        raise ValueError("a batch without labels")

    def destroy(self) -> None:
        dist.destroy_process_group()
        for_ever()

    def sizes(self) -> None:
        dist.all_reduce(torch.ones(5))

    def disk(self) -> None:
        wait_in_the_kernel(self.folder)

    def timed_out(self) -> None:
        for_ever()

    def ended_by_launcher(self) -> None:
        for_ever()

    def sleep(self) -> None:
        for_ever()

    planned = sleep

    def swallowed(self) -> None:
        try:
            raise ValueError("a batch without labels")
        except ValueError:
            dist.barrier()

    def stopped(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def lock(self) -> None:
        lock()

    def pipe(self) -> None:
        read_pipe()

    def gil(self) -> None:
        hold_gil()

    def spins(self) -> None:
        spin()

    def operation(self) -> None:
        dist.all_gather([torch.ones(4) for _ in range(WORLD_SIZE)], torch.ones(4))

    def send(self) -> None:
        dist.send(torch.ones(4_000_000), 0)

    def receive(self) -> None:
        dist.recv(torch.ones(4), 0)

    def cgroup(self) -> None:
        fill_cgroup()


class SlowFile:
    """Storage that takes `seconds` for what is written to it."""

    def __init__(self, file: BinaryIO, seconds: float) -> None:
        self.file, self.seconds = file, seconds

    def write(self, data: bytes) -> int:
        time.sleep(self.seconds if len(data) > 1_000_000 else 0)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


class Layer(torch.nn.ReLU):
    """A layer whose output, or the gradient of its input, may be made NaN."""

    spoils = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        if self.spoils == "backward":
            x = Spoiled.apply(x)  # type: ignore[no-untyped-call]  # torch says none
        return x * float("nan") if self.spoils == "forward" else x


class Spoiled(torch.autograd.Function):
    """Nothing, with a gradient of NaN."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * float("nan")


class Pauses:
    """Do what takes a healthy job long between two steps."""

    def __init__(self, rank: int, folder: Path, model: torch.nn.Module) -> None:
        self.rank, self.folder, self.model = rank, folder, model

    def evaluates(self) -> None:
        self.model.eval()
        end = time.monotonic() + 25
        with torch.no_grad():
            while time.monotonic() < end:
                self.model(torch.ones(4096, 16))
        self.model.train()

    def evaluates_alone(self) -> None:
        """Rank 0 evaluates, and the others wait for it."""
        if self.rank == 0:
            end = time.monotonic() + 60
            with torch.no_grad():
                while time.monotonic() < end:
                    self.model(torch.ones(4096, 16))
        dist.barrier()

    def checkpoints_behind(self) -> None:
        """Rank 0 waits for a thread that saves to slow storage, as asynchronous checkpoints do before the next one."""
        if self.rank == 0:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(self._save_slowly).result()
        dist.barrier()

    def _save_slowly(self) -> None:
        with (self.folder / "slow.pt").open("wb") as file:
            torch.save(torch.ones(4_000_000), SlowFile(file, 60))  # type: ignore[arg-type]  # it has what is needed

    def checkpoints(self) -> None:
        """Rank 0 saves for a while, and the others wait for it."""
        if self.rank == 0:
            end = time.monotonic() + 25
            while time.monotonic() < end:
                torch.save(torch.ones(4_000_000), self.folder / "checkpoint.pt")
        dist.barrier()

    def compiles(self) -> None:
        end = time.monotonic() + 25
        while time.monotonic() < end:
            torch._dynamo.reset()
            torch.compile(self.model)(torch.ones(8, 16))

    def storage(self) -> None:
        if self.rank == CULPRIT:
            wait_in_the_kernel(self.folder, STORAGE_S)

    def storage_pipe(self) -> None:
        if self.rank == CULPRIT:
            reader, writer = os.pipe()
            Timer(STORAGE_S, os.write, (writer, b"x")).start()
            os.read(reader, 1)


class Styles:
    """Other ways to train: what the ranks do together in each step, beside the gradients of the model."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    @cached_property
    def mesh(self) -> DeviceMesh:
        return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    @cached_property
    def sharded(self) -> torch.nn.Module:
        from torch.distributed.fsdp import fully_shard  # takes seconds, and few jobs need it

        module = torch.nn.Linear(16, 16)
        fully_shard(module, mesh=init_device_mesh("cpu", (WORLD_SIZE,)))
        return module

    def mesh_2d(self) -> None:
        for name in ("tp", "dp"):
            dist.all_reduce(torch.ones(8), group=self.mesh.get_group(name))

    def fsdp(self) -> None:
        self.sharded(torch.ones(4, 16)).sum().backward()

    def pipeline(self) -> None:
        """Forward along the ranks and back."""
        if self.rank > 0:
            dist.recv(torch.ones(64), self.rank - 1)
        if self.rank < WORLD_SIZE - 1:
            dist.send(torch.ones(64), self.rank + 1)
            dist.recv(torch.ones(64), self.rank + 1)
        if self.rank > 0:
            dist.send(torch.ones(64), self.rank - 1)

    def batched(self) -> None:
        """A ring of sends and receives that run at the same time."""
        after, before = (self.rank + 1) % WORLD_SIZE, (self.rank - 1) % WORLD_SIZE
        both = [dist.P2POp(dist.isend, torch.ones(64), after), dist.P2POp(dist.irecv, torch.ones(64), before)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    def waits_later(self) -> None:
        work = dist.all_reduce(torch.ones(8), async_op=True)
        torch.ones(64, 64) @ torch.ones(64, 64)
        work.wait()

    def objects(self) -> None:
        dist.all_gather_object([None] * WORLD_SIZE, {"rank": self.rank})

    def monitored(self) -> None:
        dist.monitored_barrier()


#: In which step the rank sleeps where that does not wait for anything.
EARLY = {"first_step": 1}


def train(rank: int, folder: Path, fault: str) -> None:
    (folder / f"rank_{rank}").write_text(str(os.getpid()))
    world_size = int(os.environ["WORLD_SIZE"])
    if fault in BY_STORE:
        dist.init_process_group("gloo")  # by MASTER_ADDR and MASTER_PORT
    else:
        timeout = GIVES_UP_AFTER if fault in GIVES_UP else None
        init = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=init, rank=rank, world_size=world_size, timeout=timeout)
    faults = Faults(folder)
    torch.manual_seed(0)
    layer = Layer()
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), layer, torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    is_culprit = rank == CULPRIT
    pauses = Pauses(rank, folder, model)
    style = getattr(Styles(rank), fault) if hasattr(Styles, fault) else None
    loaders: dict[str, Callable[[], None]] = {
        "loader": for_ever,
        "worker": for_ever,
        "worker_dies": die,
        "worker_disk": partial(wait_in_the_kernel, folder),
        "storage_loader": partial(now_and_then, wait_in_the_kernel, folder, STORAGE_S),
        "storage_retry": partial(now_and_then, time.sleep, STORAGE_S),
    }
    stuck = loaders.get(fault) if is_culprit else None
    has_workers = fault.startswith("worker") or fault in ("leaks_worker", "storage_loader")
    numbers = Numbers(folder, stuck, keeps=is_culprit and fault == "leaks_worker")
    batches = iter(DataLoader(numbers, batch_size=BATCH_SIZE, num_workers=2 if has_workers else 0))
    # torch's debug server, as `torch.distributed.debug` starts it in each rank.
    server = _WorkerServer(str(folder / f"debug_{rank}")) if "HANGS_DEBUG_SERVER" in os.environ else None
    kept: list[object] = []
    for step in itertools.count(1):
        (folder / f"trains_{rank}").write_text(str(step))
        is_last = step == (EARLY.get(fault) or last_step(folder))
        batch = next(batches)
        is_spoiled = is_culprit and fault.startswith("nan_") and (folder / "plant").exists()
        layer.spoils = fault.removeprefix("nan_") if is_spoiled else ""
        loss = (
            model(batch * float("nan") if layer.spoils == "data" else batch).pow(2).mean()
        )  # so that training cannot make it infinite
        loss.backward()
        if is_culprit and fault == "leaks_graph":
            kept.append(loss)
        if is_culprit and fault == "leaks_objects":
            kept += [str(number) for number in range(1000)]
        if is_culprit and is_last and (style is not None or fault in EARLY):
            for_ever()
        if style is not None:
            style()
        if is_last:
            if fault == "order" and rank in (0, CULPRIT):
                groups = [faults.pair, faults.other]
                for group in groups if is_culprit else groups[::-1]:
                    dist.all_reduce(torch.ones(1), group=group)
            elif fault == "gone_store":
                if rank == 0:
                    os.kill(int(os.environ["STORE_PID"]), signal.SIGSTOP)  # its host does not answer any more
                dist.barrier()
                dist.new_group([0, 1, CULPRIT])
            elif is_culprit and hasattr(Faults, fault):
                getattr(faults, fault)()
        if step % PAUSE_STEPS == 0 and hasattr(Pauses, fault):
            getattr(pauses, fault)()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        if fault == "slow" and step >= PAUSE_STEPS and is_culprit:
            time.sleep(1.5)
        time.sleep(STEP_S)
    del server


def now_and_then(pause: Callable[..., None], *arguments: object) -> None:
    """Pause at every 16,000th call."""
    if next(_calls) % 16_000 == 0:
        pause(*arguments)


_calls = itertools.count()


def train_spawned(rank: int, folder: Path) -> None:
    """A rank that `torch.multiprocessing.spawn` has started."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    train(rank, folder, "sleep")


def start(folder: Path, fault: str, *, with_server: bool = False) -> list[subprocess.Popen[bytes]]:
    """Start the ranks, and after them what else the job has. Of `few`, the last rank never starts."""
    folder.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "WORLD_SIZE": str(WORLD_SIZE), "OMP_NUM_THREADS": "1"}
    if with_server:
        environ["HANGS_DEBUG_SERVER"] = "1"
    store = None
    if fault in BY_STORE:
        store = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hangs.job", str(folder), "store"], env=environ, start_new_session=True
        )
        while not (folder / "store").exists():
            time.sleep(0.1)
        port = (folder / "store").read_text()
        environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True"}
        environ["STORE_PID"] = str(store.pid)
    command = [sys.executable, "-m", "benchmarks.hangs.job", str(folder), fault]
    ranks = range(WORLD_SIZE - (fault == "few"))
    if fault == "planned":
        environs = [{**environ, "PROBE": "1", "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in ranks]
    else:
        environs = [{**environ, "NUM_RANKS": str(len(ranks))}]
    # A session of its own: all that it starts ends with it.
    processes = [subprocess.Popen(command, env=environ, start_new_session=True) for environ in environs]
    return processes if store is None else [*processes, store]


def launch(folder: Path, fault: str, num_ranks: int) -> None:
    """Fork the ranks, after torch has been imported once, and wait for them."""
    pids = []
    for rank in range(num_ranks):
        if (pid := os.fork()) == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            return train(rank, folder, fault)
        pids.append(pid)
    for _ in range(num_ranks):
        pid, status = os.wait()
        pids.remove(pid)
        if status and fault == "ended_by_launcher":
            time.sleep(1.0)
            for other in pids:
                os.kill(other, signal.SIGTERM)
    return None


def serve_store(folder: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    (folder / "port").write_text(str(store.port))
    (folder / "port").rename(folder / "store")
    for_ever()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]), Path(sys.argv[1]), sys.argv[2])
    elif sys.argv[2] == "store":
        serve_store(Path(sys.argv[1]))
    elif sys.argv[2] == "spawned":
        spawn(train_spawned, (Path(sys.argv[1]),), WORLD_SIZE)  # type: ignore[no-untyped-call]  # torch says none
    else:
        launch(Path(sys.argv[1]), sys.argv[2], int(os.environ["NUM_RANKS"]))
