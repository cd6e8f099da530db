"""Jobs that are slower than they have to be."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import queue
import random
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from faults.gallery import fault, mlp, regression, train


class Slow(Dataset[tuple[Tensor, Tensor]]):
    """Samples that take a while, by sleeping or by computing."""

    def __init__(self, sleep_s: float = 0.0, compute_s: float = 0.0) -> None:
        self.sleep_s, self.compute_s = sleep_s, compute_s

    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.sleep_s)
        ends = time.thread_time() + self.compute_s
        while time.thread_time() < ends:
            sum(range(1000))
        inputs = torch.randn(64)
        return inputs, inputs[:1]


def trained(dataset: Dataset[tuple[Tensor, Tensor]], num_workers: int, batch: int = 4) -> None:
    model = mlp()
    loader = DataLoader(dataset, batch_size=batch, num_workers=num_workers)
    train(model, torch.optim.Adam(model.parameters()), loader, pause_s=0.02)


@fault("loader-without-workers")
def data_set_on_the_training_thread(healthy: bool) -> None:
    trained(Slow(sleep_s=0.0 if healthy else 0.005), 0)


@fault("loader-without-workers")
def transforms_on_the_training_thread(healthy: bool) -> None:
    trained(Slow(compute_s=0.0 if healthy else 0.005), 0)


class Zipped(Dataset[tuple[Tensor, Tensor]]):
    """Samples of an .npz file, of which each array is read once or for each sample."""

    def __init__(self, healthy: bool) -> None:
        path = Path(tempfile.mkdtemp()) / "samples.npz"
        np.savez(path, inputs=np.random.default_rng(0).standard_normal((4000, 64), np.float32))
        self.arrays = dict(np.load(path)) if healthy else np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs = torch.from_numpy(self.arrays["inputs"][index])
        return inputs, inputs[:1]


@fault("npz-read-again")
def arrays_unzipped_for_each_sample(healthy: bool) -> None:
    trained(Zipped(healthy), 0, batch=16)


@fault("npz-read-again")
def arrays_unzipped_by_a_worker(healthy: bool) -> None:
    trained(Zipped(healthy), 1, batch=16)


class Recurrent(nn.Module):
    """A recurrent net with an orthogonal weight."""

    def __init__(self, cached: bool) -> None:
        super().__init__()
        self.read = nn.Linear(4, 64)
        self.again = nn.utils.parametrizations.orthogonal(nn.Linear(64, 64, bias=False))
        self.write = nn.Linear(64, 1)
        self.cached = cached

    def forward(self, inputs: Tensor) -> Tensor:
        with nn.utils.parametrize.cached() if self.cached else contextlib.nullcontext():
            state = torch.zeros(len(inputs), 64)
            for part in inputs.split(4, 1):
                state = torch.tanh(self.read(part) + self.again(state))
            output: Tensor = self.write(state)
        return output


@fault("parametrization-repeats")
def an_orthogonal_weight_made_for_each_time_step(healthy: bool) -> None:
    model = Recurrent(cached=healthy)
    train(model, torch.optim.Adam(model.parameters(), 1e-4), regression())


@fault("loader-workers-busy")
def one_worker_for_heavy_transforms(healthy: bool) -> None:
    trained(Slow(compute_s=0.0 if healthy else 0.02), 1)


@fault("loader-workers-busy")
def one_of_two_workers_with_the_heavy_samples(healthy: bool) -> None:
    class Uneven(Slow):
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            self.compute_s = 0.0 if healthy or index // 4 % 2 else 0.02
            return super().__getitem__(index)

    trained(Uneven(), 2)


@fault("python-bound")
def a_long_list_that_is_shuffled_in_each_step(healthy: bool) -> None:
    order = list(range(300_000))
    inputs, targets = next(iter(regression()))

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            if not healthy:
                random.shuffle(order)
            yield inputs, targets

    model = mlp()
    train(model, torch.optim.Adam(model.parameters()), batches())


@fault("data-bound")
def workers_that_wait_for_storage(healthy: bool) -> None:
    trained(Slow(sleep_s=0.0 if healthy else 0.05), 2)


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __init__(self, sleep_s: float) -> None:
        self.sleep_s = sleep_s

    def __iter__(self):  # type: ignore[no-untyped-def]
        while True:
            time.sleep(self.sleep_s)
            yield torch.randn(64), torch.randn(1)


@fault("loader-without-workers")
def a_stream_read_on_the_training_thread(healthy: bool) -> None:
    trained(Stream(0.0 if healthy else 0.005), 0)


@fault("collector-pauses")
def collections_of_many_objects(healthy: bool) -> None:
    kept = [[number] for number in range(50_000 if healthy else 1_500_000)]
    model = mlp()

    def collect(step: int) -> None:
        if healthy:
            gc.freeze()
        elif step % 3 == 0:
            gc.collect()

    train(model, torch.optim.Adam(model.parameters()), regression(), after_step=collect)
    del kept


@fault("recompiles")
def another_length_in_each_batch(healthy: bool) -> None:
    model = nn.Linear(8, 8)

    @torch.compile(dynamic=False, backend="eager")
    def loss_of(inputs: Tensor) -> Tensor:
        return model(inputs).square().mean()

    optimizer = torch.optim.Adam(model.parameters())
    for step in range(10**9):
        optimizer.zero_grad()
        loss_of(torch.randn(4 if healthy else 4 + step // 40 % 7, 8)).backward()
        optimizer.step()
        time.sleep(0.02)


@fault("graph-breaks")
def a_print_in_the_compiled_function(healthy: bool) -> None:
    model = nn.Linear(8, 8)
    time.sleep(8.0)  # so that the compilation is seen by a recorder that comes to the running program

    @torch.compile(backend="eager")
    def loss_of(inputs: Tensor) -> Tensor:
        output = model(inputs)
        if not healthy:
            print("batch", file=sys.stderr)
        return output.square().mean()

    optimizer = torch.optim.Adam(model.parameters())
    while True:
        optimizer.zero_grad()
        loss_of(torch.randn(4, 8)).backward()
        optimizer.step()
        time.sleep(0.02)


@fault("slower-than-best")
def a_list_that_is_walked_in_each_step(healthy: bool) -> None:
    history: list[float] = []
    model = mlp()

    def walk(step: int) -> None:
        history.extend([1.0] * (1 if healthy else 400))
        sum(history)

    train(model, torch.optim.Adam(model.parameters()), regression(), after_step=walk)


@fault("slower-than-best")
def a_step_that_gets_slower_at_once(healthy: bool) -> None:
    model = mlp()

    def slow(step: int) -> None:
        time.sleep(0.0 if healthy or step < 700 else 0.02)

    train(model, torch.optim.Adam(model.parameters()), regression(), after_step=slow)


@fault("workers-restart")
def epochs_that_start_their_workers_anew(healthy: bool) -> None:
    class Short(Slow):
        def __len__(self) -> int:
            return 80

    model = mlp()
    loader = DataLoader(Short(), batch_size=4, num_workers=2, persistent_workers=healthy, worker_init_fn=imported)
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        train(model, optimizer, loader, pause_s=0.02)


@fault("workers-restart")
def a_loader_that_each_step_makes(healthy: bool) -> None:
    def loader() -> DataLoader[tuple[Tensor, Tensor]]:
        return DataLoader(Slow(), batch_size=4, shuffle=False, num_workers=2)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield next(iter(loader()))

    model = mlp()
    train(model, torch.optim.Adam(model.parameters()), loader() if healthy else batches())


@fault("hooks-pile-up")
def a_hook_that_each_step_registers(healthy: bool) -> None:
    model = mlp()
    seen: dict[str, Tensor] = {}
    handles: list[torch.utils.hooks.RemovableHandle] = []

    def tap(step: int) -> None:
        while healthy and handles:
            handles.pop().remove()
        handle = model[2].register_forward_hook(lambda layer, given, out: seen.update(features=out.detach()))
        if healthy:
            handles.append(handle)

    train(model, torch.optim.Adam(model.parameters()), regression(), after_step=tap)


@fault("hooks-pile-up", begins_s=8.0)
def hooks_that_each_epoch_registers(healthy: bool) -> None:
    model = mlp()
    widest: dict[str, float] = {}
    handles: list[torch.utils.hooks.RemovableHandle] = []

    def watch(step: int) -> None:
        if step % 100 == 0:
            while healthy and handles:
                handles.pop().remove()
            for name, layer in model.named_children():
                keep = functools.partial(collect, name)
                handles.append(layer.register_forward_hook(keep))

    def collect(name: str, layer: nn.Module, given: object, out: Tensor) -> None:
        widest[name] = max(widest.get(name, 0.0), float(out.detach().abs().max()))

    train(model, torch.optim.Adam(model.parameters()), regression(), after_step=watch, pause_s=0.005)


def imported(worker: int) -> None:
    """What a worker imports and opens before its first sample."""
    time.sleep(0.5)


@fault("embedding-dense")
def users_whose_every_row_adam_updates(healthy: bool) -> None:
    class Preferences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users = nn.Embedding(200_000, 32, sparse=healthy)
            self.head = mlp()

        def forward(self, users: Tensor) -> Tensor:
            return self.head(self.users(users).repeat(1, 2))  # type: ignore[no-any-return]

    model = Preferences()
    tables, rest = list(model.users.parameters()), list(model.head.parameters())
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(rest if healthy else [*rest, *tables], 1e-3)]
    if healthy:
        optimizers.append(torch.optim.SparseAdam(tables, 1e-3))
    tastes = torch.randn(200_000)
    while True:
        users = (200_000 * torch.rand(64) ** 3).long()
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.mse_loss(model(users).squeeze(-1), tastes[users]).backward()
        for optimizer in optimizers:
            optimizer.step()


@fault("pauses")
def an_evaluation_after_every_few_steps(healthy: bool) -> None:
    model = mlp()

    def evaluate(step: int) -> None:
        if step % 40 == 39:
            model.eval()
            with torch.no_grad():
                for _ in range(2 if healthy else 60):
                    model(torch.randn(16, 64))
                    time.sleep(0.02)
            model.train()

    train(model, torch.optim.Adam(model.parameters()), regression(), after_step=evaluate, pause_s=0.02)


@fault("pauses")
def statistics_that_are_sent_away_now_and_then(healthy: bool) -> None:
    model = mlp()

    def send(step: int) -> None:
        time.sleep(0.8 if not healthy and step % 50 == 49 else 0.0)

    train(model, torch.optim.Adam(model.parameters()), regression(), after_step=send, pause_s=0.02)


@fault("pauses")
def a_lock_that_a_thread_keeps_while_it_compresses(healthy: bool) -> None:
    model, averaged, lock = mlp(), mlp(), threading.Lock()

    def archive() -> None:
        while True:
            time.sleep(2.0)
            with lock:
                copied = b"".join(one.numpy().tobytes() for one in averaged.state_dict().values())
                if not healthy:
                    _compress_for(0.8, copied)
            if healthy:
                _compress_for(0.8, copied)

    threading.Thread(target=archive, daemon=True).start()
    optimizer = torch.optim.Adam(model.parameters())
    for inputs, targets in regression():
        loss = nn.functional.mse_loss(model(inputs), targets)
        time.sleep(0.02)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with lock, torch.no_grad():
            for mean, one in zip(averaged.parameters(), model.parameters(), strict=True):
                mean.lerp_(one, 0.01)


class Reader(nn.Module):
    """A small encoder that is told what is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(100, 64), nn.Linear(64, 2)
        self.encoder = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        read = self.encoder(self.table(tokens), src_key_padding_mask=attention_mask == 0)
        return self.head((read * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True))


@fault("padding-dominates")
def short_texts_that_are_all_padded_to_one_length(healthy: bool) -> None:
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters())
    while True:
        lengths = torch.randint(8, 40, (16,))
        longest = int(lengths.max()) if healthy else 256
        mask = (torch.arange(longest) < lengths[:, None]).long()
        tokens = torch.randint(1, 100, (16, longest)) * mask
        loss = nn.functional.cross_entropy(model(tokens, attention_mask=mask), tokens[:, 0] % 2)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@fault("pauses")
def an_f1_score_over_all_predictions_so_far(healthy: bool) -> None:
    model, told = mlp(), list[tuple[int, int]]()
    optimizer = torch.optim.Adam(model.parameters())
    for step, (inputs, targets) in enumerate(regression(batch=512)):
        outputs = model(inputs)
        nn.functional.mse_loss(outputs, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        predicted = (4 * outputs.detach()).long().clamp(-4, 4).flatten().tolist()
        told.extend(zip(predicted, (4 * targets).long().clamp(-4, 4).flatten().tolist(), strict=True))
        time.sleep(0.01)
        if step % 20 == 19:
            for label in range(-4, 5):
                hits = sum(one == label == other for one, other in told)
                named = sum(one == label for one, _ in told) + sum(other == label for _, other in told)
                logging.debug("F1 of class %d: %.3f", label, 2 * hits / max(1, named))
            if healthy:
                told.clear()


def _compress_for(duration_s: float, data: bytes) -> None:
    ends = time.monotonic() + duration_s
    while time.monotonic() < ends:
        zlib.compress(data, 9)


@fault("output-too-often")
def a_log_that_is_flushed_to_disk_in_every_step(healthy: bool) -> None:
    model = mlp()
    with tempfile.TemporaryFile("w") as file:

        def log(step: int) -> None:
            for name, parameter in model.named_parameters():
                if not healthy or step % 200 == 0:
                    file.write(f"{step} {name} {parameter.flatten()[:4000].tolist()}\n" * 20)
                    file.flush()

        train(model, torch.optim.Adam(model.parameters()), regression(), after_step=log)


@fault("output-too-often")
def a_logger_that_formats_much_in_every_step(healthy: bool) -> None:
    model = mlp()
    logging.basicConfig(filename="/dev/null", level=logging.INFO)
    log = logging.getLogger("train")

    def say(step: int) -> None:
        for number in range(1 if healthy else 400):
            if not healthy or step % 100 == 0:
                log.info("step %d, parameter %d of %d", step, number, 400)

    train(model, torch.optim.Adam(model.parameters()), regression(), after_step=say)


@fault("values-read-back")
def an_accuracy_counted_element_by_element(healthy: bool) -> None:
    model = mlp()
    right = [0.0]

    def count(step: int) -> None:
        output = model(torch.randn(2000 if not healthy else 20, 64)).detach()[:, 0]
        if healthy:
            right[0] += float((output > 0).sum())
        else:
            for at in range(len(output)):
                right[0] += output[at].item() > 0

    train(model, torch.optim.Adam(model.parameters()), regression(), after_step=count)


@fault("waits-for-gil")
def a_monitor_that_polls_all_the_time(healthy: bool) -> None:
    class Residual(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs + 0.1 * super().forward(inputs).relu()

    model = nn.Sequential(*(Residual(64, 64) for _ in range(30)), nn.Linear(64, 1))
    seen = [0]

    def watch() -> None:
        while True:
            seen[0] += 1
            if healthy:
                time.sleep(0.05)

    threading.Thread(target=watch, name="monitor", daemon=True).start()
    train(model, torch.optim.Adam(model.parameters()), regression())


@fault("waits-for-thread")
def a_thread_that_unpacks_the_archive_for_each_batch(healthy: bool) -> None:
    samples = torch.randn(4096, 64).numpy()
    archive = zlib.compress(samples.tobytes() * 2)
    ready: queue.Queue[tuple[Tensor, Tensor]] = queue.Queue(maxsize=4)

    def unpack() -> Tensor:
        return torch.frombuffer(bytearray(zlib.decompress(archive)), dtype=torch.float32).view(-1, 64)

    def fill() -> None:
        unpacked = unpack()
        while True:
            inputs = (unpacked if healthy else unpack())[torch.randint(0, 4096, (32,))]
            ready.put((inputs, inputs[:, :1]))

    threading.Thread(target=fill, name="batches", daemon=True).start()
    model = mlp()
    train(model, torch.optim.Adam(model.parameters()), iter(ready.get, None), pause_s=0.002)


@fault("threads-oversubscribed")
def more_threads_for_operators_than_cores(healthy: bool) -> None:
    torch.set_num_threads(1 if healthy else 16)
    heavy = torch.randn(1024, 1024)
    model = mlp()

    def multiply(step: int) -> None:
        heavy @ heavy

    train(model, torch.optim.Adam(model.parameters()), regression(), after_step=multiply, pause_s=0.1 * healthy)
