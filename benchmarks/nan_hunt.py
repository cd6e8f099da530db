"""Cost of `probe … nan --hunt` for the job: `python -m benchmarks.nan_hunt`.

Runs in this process, without a server or thread of the recorder: blocks of steps of a real training loop with the
recorder's hooks, watched and not watched, in shuffled order, in CPU time of the training thread. The MLP has 37 modules
and steps of 0.8 ms, where a hook shows most; the GPT has 10.7 million parameters.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from pathlib import Path
from time import thread_time

import torch
from torch import nn

from probe_agent.recorder.steps.nan_hunt import NanHunt
from probe_agent.recorder.steps.tensor_reader import GRADIENT, items_of

from .hooks import UNSAMPLED, Recording, recording
from .machine import provenance
from .spread import figure, ratio, table

__all__ = ["main"]

#: Steps between two watched ones; 0 for no hunt.
RATES = {"no hunt": 0, "every step": 1, "every tenth": 10}
MODELS = {"mlp": 300, "gpt": 10}  # steps in a block

Step = Callable[[], None]


def mlp() -> tuple[nn.Module, Step]:
    """Make twelve blocks of Linear and ReLU: 37 modules with the Sequentials around them."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(12)))
    inputs, targets = torch.randn(32, 64), torch.randn(32, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()

    return model, step


def gpt() -> tuple[nn.Module, Step]:
    """Make the GPT of the demo, at the usual size for text by characters."""
    sys.path.append(str(Path(__file__).parents[1] / "docs" / "demo"))
    from train_gpt import GPT  # type: ignore[import-not-found]  # in docs/demo

    model = GPT(96, 32, n_layer=6, n_head=6, n_embd=384)
    inputs, targets = torch.randint(96, (2, 32)), torch.randint(96, (2, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs, targets).backward()
        optimizer.step()

    return model, step


def block_s(recorder: Recording, model: nn.Module, step: Step, every: int, num_steps: int) -> float:
    """Return the CPU seconds of this thread per step."""
    if every:
        items = items_of([(type(model).__name__, model)], (), (GRADIENT,))
        hunt = NanHunt(
            recorder.at_step,
            recorder.step,
            recorder.device,
            items,
            every=every,
            num_steps=None,
            budget_ms=1e4,
            fail=recorder.fail,
        )
        recorder.at_step.submit(hunt)
    step()
    step()
    began = thread_time()
    for _ in range(num_steps):
        step()
    took = (thread_time() - began) / num_steps
    if every:
        assert hunt.num_watched, "no step was watched"
        hunt.cancel()
        step()
        assert hunt.found is None, hunt.found
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="blocks of each kind")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    rows = []
    for name, num_steps in MODELS.items():
        model, step = {"mlp": mlp, "gpt": gpt}[name]()
        seen: dict[str, list[float]] = {how: [] for how in RATES}
        with recording(UNSAMPLED) as recorder:
            recorder.step.beginning.insert(0, recorder.at_step.run_pending)  # as the runtime does
            for _ in range(args.rounds):
                for how in random.sample(list(RATES), len(RATES)):
                    seen[how].append(block_s(recorder, model, step, RATES[how], num_steps))
        for how in RATES:
            change = "" if how == "no hunt" else ratio(seen[how], seen["no hunt"]).show_change()
            rows.append([f"{name}, {how}", figure(seen[how]).show(1e3, unit="ms"), change])
    print(f"Medians of {args.rounds} rounds with the 95 % interval of the median, CPU time of the training thread.\n")
    print(table(["model, watched", "a step", "more"], rows), end="\n\n")
    print(provenance())


if __name__ == "__main__":
    main()
