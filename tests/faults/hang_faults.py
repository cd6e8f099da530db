"""Jobs that stop getting on, most of them twenty seconds after their start."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from faults.gallery import fault, mlp, regression, train
from faults.ranks import LATE_S, is_late, join, train_together


@fault("rank-works-alone", num_ranks=2, begins_s=LATE_S)
def an_evaluation_on_rank_zero_alone(healthy: bool) -> None:
    rank = join()
    model = mlp()

    def evaluate(step: int) -> None:
        if rank != 0 or not (step % 200 == 199 if healthy else is_late()):
            return
        ends = time.monotonic() + (0.1 if healthy else 90.0)
        with torch.no_grad():
            while time.monotonic() < ends:
                model(torch.randn(64, 64)).sum()

    train_together(after_step=evaluate)


@fault("job-hangs", num_ranks=2, begins_s=LATE_S)
def a_collective_that_one_rank_does_not_call(healthy: bool) -> None:
    rank = join()
    answers: queue.Queue[int] = queue.Queue()

    def gather_metrics(step: int) -> None:
        if not healthy and rank == 1 and is_late():
            answers.get()  # of a server that does not answer
        dist.all_reduce(torch.ones(4))

    train_together(after_step=gather_metrics)


@fault("job-hangs", num_ranks=2, begins_s=LATE_S)
def groups_used_in_different_orders(healthy: bool) -> None:
    rank = join()
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]

    def exchange(step: int) -> None:
        in_order = groups if healthy or rank == 0 or not is_late() else groups[::-1]
        for group in in_order:
            dist.all_reduce(torch.ones(4), group=group)

    train_together(after_step=exchange)


@fault("job-hangs", num_ranks=2, begins_s=LATE_S)
def a_rank_that_somebody_stopped(healthy: bool) -> None:
    rank = join()

    def stop(step: int) -> None:
        if not healthy and rank == 1 and is_late():
            os.kill(os.getpid(), signal.SIGSTOP)

    train_together(after_step=stop)


class Stuck(Dataset[tuple[Tensor, Tensor]]):
    """From a while on no item comes."""

    def __init__(self, healthy: bool) -> None:
        self.healthy = healthy

    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        while not self.healthy and is_late():
            time.sleep(3600)
        inputs = torch.randn(64)
        return inputs, inputs[:1]


@fault("job-hangs", begins_s=LATE_S)
def a_loader_worker_that_never_answers(healthy: bool) -> None:
    model = mlp()
    loader = DataLoader(Stuck(healthy), batch_size=4, num_workers=1)
    train(model, torch.optim.Adam(model.parameters()), loader, pause_s=0.02)


@fault("job-hangs", begins_s=LATE_S)
def a_lock_that_is_taken_twice(healthy: bool) -> None:
    model = mlp()
    lock = threading.Lock()

    def log(step: int) -> None:
        with lock:
            if not healthy and is_late():
                with lock:
                    pass

    train(model, torch.optim.Adam(model.parameters()), regression(), after_step=log)


@fault("rank-died", num_ranks=2, begins_s=LATE_S)
def a_rank_that_raised_and_did_not_end(healthy: bool) -> None:
    rank = join()
    threading.Thread(target=time.sleep, args=(10**6,), name="logger").start()  # keeps the process

    def read(step: int) -> None:
        if not healthy and rank == 1 and is_late():
            raise ValueError("sample 7311 has no label")

    train_together(before_forward=read)


@fault("rank-died", begins_s=LATE_S)
def a_prefetch_thread_that_raised(healthy: bool) -> None:
    batches: queue.Queue[tuple[Tensor, Tensor]] = queue.Queue(8)

    def prefetch() -> None:
        for batch in regression():
            if not healthy and is_late():
                raise KeyError("label")
            batches.put(batch)

    threading.Thread(target=prefetch, name="prefetch", daemon=True).start()
    model = mlp()
    train(model, torch.optim.Adam(model.parameters()), iter(batches.get, None))


@fault("group-never-forms", num_ranks=3)
def a_rank_that_never_comes(healthy: bool) -> None:
    if not healthy and os.environ["RANK"] == "2":
        time.sleep(10**6)
    join()
    train_together()


@fault("timeout-near", num_ranks=2)
def a_timeout_that_is_short_for_the_job(healthy: bool) -> None:
    rank = join(20.0)

    def prepare(step: int) -> None:
        time.sleep(9.0 if not healthy and rank == 1 else 0.0)

    train_together(before_forward=prepare)
