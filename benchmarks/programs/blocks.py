"""A real torch training program that runs blocks of steps on command.

python blocks.py --model mlp    37 modules, 0.8 ms a step: the overhead of a hook is at its worst
python blocks.py --model gpt    10.7 million parameters, learns the standard library's sources by character
                 --compiled     torch.compile of the model
                 --ranks 2      DistributedDataParallel over gloo; this process is rank 0

{"steps": 400}                  train for 400 steps; its pieces are the steps
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from commands import Piece, now, serve_blocks, told
from ranks import ONE_BY_ONE, Ranks, follow
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parents[2] / "docs" / "demo"))

#: What the model is wrapped into.
Around = Callable[[torch.nn.Module], torch.nn.Module]
Training = tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], torch.Tensor]]


def mlp(batch_size: int, around: Around) -> Training:
    """Make twelve blocks of Linear and ReLU: 37 modules with the Sequentials around them."""
    blocks = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()) for _ in range(12)]
    model = around(torch.nn.Sequential(*blocks))
    inputs, targets = torch.randn(batch_size, 64), torch.randn(batch_size, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, optimizer, lambda: torch.nn.functional.mse_loss(model(inputs), targets)


def gpt(batch_size: int, around: Around) -> Training:
    """Make the GPT of the demo, at the usual size for text by characters."""
    from torch.utils.data import DataLoader
    from train_gpt import GPT, CharDataset, read_text  # type: ignore[import-not-found]  # in docs/demo

    block_size = 32
    dataset = CharDataset(read_text(1_000_000), block_size)
    model = around(GPT(len(dataset.chars), block_size, n_layer=6, n_head=6, n_embd=384))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    loader = DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True)
    batches = iter(loader)

    def loss() -> torch.Tensor:
        inputs, targets = next(batches)
        return model(inputs, targets)  # type: ignore[no-any-return]

    return model, optimizer, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("mlp", "gpt"), default="mlp")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0, help="of this process; rank 0 starts the others")
    parser.add_argument("--store", help="the file through which the other ranks find rank 0")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(7)

    def around(model: torch.nn.Module) -> torch.nn.Module:
        if args.ranks > 1:
            model = DistributedDataParallel(model)
        if args.compiled:
            model = torch.compile(model)  # type: ignore[assignment]
        return model

    def make() -> tuple[torch.nn.Module, Callable[[], None]]:
        """Return the model, and the function that takes a step with it."""
        model, optimizer, loss_of_next_batch = mlp(32, around) if args.model == "mlp" else gpt(2, around)

        def take_step() -> None:
            optimizer.zero_grad(set_to_none=True)
            loss_of_next_batch().backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return model, take_step

    if args.rank:
        follow(args.rank, args.ranks, args.store, lambda: make()[1])
        return
    ranks = Ranks(args.ranks) if args.ranks > 1 else None
    model, take_step = make()

    def train(order: dict[str, float]) -> list[Piece]:
        is_known = order.keys() == {"steps"}
        ends = [now()]
        until = ends[0] + order.get("seconds", float("inf")) * 1e9
        num_steps = order.get("steps", float("inf"))
        if ranks:
            ranks.tell(int(num_steps) if is_known else ONE_BY_ONE)
        while len(ends) <= num_steps and ends[-1] < until and not (order.get("until_told") and told()):
            if ranks and not is_known:
                ranks.tell(1)
            take_step()
            ends.append(now())
        if ranks and not is_known:
            ranks.tell(0)
        return list(pairwise(ends))

    about: dict[str, object] = {
        "program": f"blocks --model {args.model}",
        "pids": ranks.pids if ranks else [os.getpid()],
        "num_modules": len(list(model.modules())),
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "torch": torch.__version__,
    }
    serve_blocks(about, train)
    if ranks:
        ranks.end()


if __name__ == "__main__":
    main()
