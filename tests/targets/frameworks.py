"""Training loops of several frameworks: each first alone, then again under the recorder, from the same seed.

    frameworks.py FOLDER transformers | generating | accelerate | lightning | compiled | distributed

`distributed` is one rank of a torchrun. Writes `done-RANK.json`: for each loop when it ran under the recorder, its
number of optimizer steps, its losses, what Dynamo did, and a digest of the weights, alone and under the recorder.
Ends when there is a file `stop` in FOLDER.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import own_recorder
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from probe_agent.recorder.hooks import inference
from probe_agent.recorder.ring import folder as folders

FOLDER = Path(sys.argv[1])
STEPS = 8
inference.QUIET_NS = 100_000_000
SIZE = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(SIZE, SIZE)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(0.001)  # so that every step is long enough to have its loss read
        return inputs + torch.tanh(self.inner(inputs))


class CompilableBlock(Block):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + torch.tanh(self.inner(inputs))


def model(block: type[nn.Module] = Block) -> nn.Sequential:
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.Dropout(0.1), block(), block())


def samples(num: int = STEPS * 4 * 2) -> TensorDataset:
    inputs = torch.randn(num, SIZE, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs.roll(1, 0))


def batches(length: int = 4) -> DataLoader:
    return DataLoader(samples(), batch_size=length)


class Training:
    """The report of one training loop."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.num_steps = 0
        self.weights: dict[str, torch.Tensor] = {}

    def digest(self) -> str:
        found = hashlib.sha256(torch.rand(4).numpy().tobytes())  # whoever drew a random number shows too
        for name, tensor in self.weights.items():
            found.update(name.encode() + tensor.detach().numpy().tobytes())
        return found.hexdigest()


def plain(
    told: Training,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    call: Callable[..., torch.Tensor] | None = None,
    step: Callable[[], object] | None = None,
    pause: float = 0.0,
) -> None:
    """Train with the usual loop."""
    for number, (inputs, targets) in enumerate(batches()):
        if number == STEPS:
            break
        optimizer.zero_grad()
        loss = nn.functional.mse_loss((call or net)(inputs), targets)
        loss.backward()
        time.sleep(pause)
        (step or optimizer.step)()
        told.losses.append(loss.item())
        told.num_steps += 1
    told.weights = net.state_dict()


# Hugging Face Trainer


def transformers(told: Training) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    net = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=32, **sizes))
    tokens = torch.randint(64, (64, 16), generator=torch.Generator().manual_seed(2))

    class Noted(Trainer):
        def training_step(self, *args: object, **kwargs: object) -> torch.Tensor:
            loss = super().training_step(*args, **kwargs)
            told.losses.append(loss.item())
            return loss

    arguments = TrainingArguments(
        output_dir=str(FOLDER / "out"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=STEPS,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    trainer = Noted(model=net, args=arguments, train_dataset=rows, eval_dataset=rows[:8])
    trainer.train()
    told.num_steps = trainer.state.global_step
    told.weights = net.state_dict()


def generating(told: Training) -> None:
    """Generate a token per step, without training."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    net = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=64, **sizes)).eval()
    # Long enough that it is found out; alone, once.
    until = time.monotonic() + 20 * inference.QUIET_NS * 1e-9 * bool(list(FOLDER.glob("*/*")))
    while True:
        tokens = net.generate(torch.ones(1, 4, dtype=torch.long), max_new_tokens=STEPS * 2, do_sample=False)
        told.num_steps = STEPS * 2
        if time.monotonic() > until:
            break
    told.weights = {"tokens": tokens}


# Accelerate


def accelerate(told: Training) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    net, optimizer, loader = accelerator.prepare(net, optimizer, batches())
    for inputs, targets in loader:
        with accelerator.accumulate(net):
            loss = nn.functional.mse_loss(net(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        told.losses.append(loss.item())
        told.num_steps += accelerator.sync_gradients
    told.weights = net.state_dict()


# Lightning


def lightning(told: Training) -> None:
    import lightning as L

    class Task(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
            told.losses.append(loss.item())
            return loss

        def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
            self.net(batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 0.01)

    task = Task()
    quiet = {name: False for name in ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")}
    trainer = L.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        val_check_interval=4,
        accumulate_grad_batches=2,
        default_root_dir=str(FOLDER),
        **quiet,
    )
    trainer.fit(task, batches(), batches(16))
    told.num_steps = trainer.global_step
    told.weights = task.state_dict()


# torch.compile


def compiled_model(told: Training) -> None:
    net = model(CompilableBlock)
    call = torch.compile(net, backend="aot_eager", fullgraph=True)
    plain(told, net, torch.optim.AdamW(net.parameters()), call, pause=0.003)


def compiled_blocks(told: Training) -> None:
    net = model(CompilableBlock)
    for block in net[2:]:
        block.compile(backend="aot_eager", fullgraph=True)
    plain(told, net, torch.optim.AdamW(net.parameters()), pause=0.003)


def compiled_step(told: Training) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    step = torch.compile(optimizer.step, backend="aot_eager")
    plain(told, net, optimizer, step=step)


# Distributed


def ddp(told: Training) -> None:
    net = nn.parallel.DistributedDataParallel(model())
    plain(told, net, torch.optim.AdamW(net.parameters()))


def ddp_accumulating(told: Training) -> None:
    net = nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.AdamW(net.parameters())
    for number, (inputs, targets) in enumerate(batches()):
        is_last = number % 2 == 1
        net.require_backward_grad_sync = is_last
        loss = nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
            told.num_steps += 1
        told.losses.append(loss.item())
    told.weights = net.state_dict()


def fsdp2(told: Training) -> None:
    from torch.distributed.fsdp import fully_shard

    net = model()
    for block in net[2:]:
        fully_shard(block)
    fully_shard(net)
    plain(told, net, torch.optim.AdamW(net.parameters()))
    told.weights = {name: tensor.full_tensor() for name, tensor in net.state_dict().items()}


KINDS: dict[str, tuple[Callable[[Training], None], ...]] = {
    "transformers": (transformers,),
    "generating": (generating,),
    "accelerate": (accelerate,),
    "lightning": (lightning,),
    "compiled": (compiled_model, compiled_blocks, compiled_step),
    "distributed": (ddp, ddp_accumulating, fsdp2),
}


def start_recorder() -> None:
    """Start recording; return once everything that will be patched is."""
    folders.BASES = (str(FOLDER),)
    own_recorder.start()
    while not list(FOLDER.glob(f"*/{os.getpid()}-*/{folders.TARGET}")):
        time.sleep(0.005)
    time.sleep(0.3)


def dynamos_counters() -> dict[str, int]:
    """Return what Dynamo has done so far; empty if it is not loaded."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return {}
    kinds = ("stats", "graph_break", "recompiles", "unimplemented")
    return {f"{kind}: {name}": count for kind in kinds for name, count in utils.counters[kind].items()}


def run(training: Callable[[Training], None]) -> Iterator[object]:
    """Return its digest, what Dynamo did, when it ran, and itself."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
    torch.manual_seed(3)
    told = Training()
    began = time.time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training(told)
    yield told.digest()
    yield dynamos_counters()
    yield sorted({str(one.message) for one in caught})
    yield {"began": began, "ended": time.time(), "num_steps": told.num_steps, "losses": told.losses}
    del told
    gc.collect()  # its optimizer is gone, so the next training's is the one that counts


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[2] == "distributed":
        torch.distributed.init_process_group("gloo")
    alone = {training.__name__: list(run(training)) for training in KINDS[sys.argv[2]]}
    start_recorder()
    found = {}
    for training in KINDS[sys.argv[2]]:
        digest, counters, caught, told = run(training)
        before = alone[training.__name__]
        found[training.__name__] = {
            **told,
            "digests": [before[0], digest],
            "counters": [before[1], counters],
            "warnings": [before[2], caught],
        }
    path = FOLDER / f"done-{os.environ.get('RANK', '0')}.json"
    path.with_suffix(".new").write_text(json.dumps(found))
    path.with_suffix(".new").rename(path)
    while not (FOLDER / "stop").exists():
        time.sleep(0.05)
    os._exit(0)


if __name__ == "__main__":
    main()
