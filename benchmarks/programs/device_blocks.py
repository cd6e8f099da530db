"""A program that trains on a GPU that runs blocks of steps on command.

python device_blocks.py --model gpt     85 million parameters in bf16: the device is the limit
                        --model small   37 modules of 64 x 64: launching kernels is the limit
                        --device cpu    the same program, small, without a GPU

{"steps": 400}                          train for 400 steps, and wait for the device; its pieces are the steps
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

sys.path.append(str(Path(__file__).parents[2] / "docs" / "demo"))

#: Layers, heads, width, tokens of a sequence, sequences a batch.
SIZES = {"cuda": (12, 12, 768, 512, 64), "cpu": (2, 2, 64, 32, 2)}
VOCABULARY = 256

Training = tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], torch.Tensor]]


def gpt(device: str) -> Training:
    """Make the GPT of the demo, at the size of a small language model; batches are on the device already."""
    from train_gpt import GPT  # type: ignore[import-not-found]  # in docs/demo

    layers, heads, width, length, batch_size = SIZES[device]
    model = GPT(VOCABULARY, length, n_layer=layers, n_head=heads, n_embd=width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(0, VOCABULARY, (batch_size, length + 1), device=device)

    def loss() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            return model(tokens[:, :-1], tokens[:, 1:])  # type: ignore[no-any-return]

    return model, optimizer, loss


def small(device: str) -> Training:
    """Make twelve blocks of Linear and ReLU: 37 modules with the Sequentials around them."""
    blocks = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()) for _ in range(12)]
    model = torch.nn.Sequential(*blocks).to(device)
    inputs, targets = torch.randn(32, 64, device=device), torch.randn(32, 64, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, optimizer, lambda: torch.nn.functional.mse_loss(model(inputs), targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("gpt", "small"), default="gpt")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    torch.set_float32_matmul_precision("high")
    model, optimizer, loss_of_next_batch = (gpt if args.model == "gpt" else small)(args.device)

    def train(order: dict[str, float]) -> list[Piece]:
        ends = [now()]
        until = ends[0] + order.get("seconds", float("inf")) * 1e9
        num_steps = order.get("steps", float("inf"))
        while len(ends) <= num_steps and ends[-1] < until and not (order.get("until_told") and told()):
            optimizer.zero_grad(set_to_none=True)
            loss_of_next_batch().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            ends.append(now())
        if args.device == "cuda":
            torch.cuda.synchronize()
        return list(pairwise(ends))

    about: dict[str, object] = {
        "program": f"device_blocks --model {args.model}",
        "pids": [os.getpid()],
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "cuda": torch.version.cuda,
        "num_modules": len(list(model.modules())),
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "torch": torch.__version__,
    }
    serve_blocks(about, train)


if __name__ == "__main__":
    main()
