"""Cost of the recorder for a job: `python -m benchmarks.overhead --model mlp`.

One training process runs blocks of steps in shuffled rounds: bare, attached with sampling off, attached with the
defaults, attached with every step sampled. Each round gives one ratio to its own bare block. A block begins a few
seconds after its attach: by then the governor has evaluated the cost of sampling, as in a run of hours. A block
during which other processes of the machine were busy is run again.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from time import monotonic

from .agent import attach, detach
from .machine import provenance
from .process import Block, Program
from .quiet import quiet_block
from .spread import figure, ratio, table

__all__ = ["main", "measure"]

BARE = "bare"
#: Arm -> its settings; None is a process without the recorder.
ARMS: dict[str, dict[str, object] | None] = {
    BARE: None,
    "attached, sampling off": {"trace.every": 0},
    "default: one step in 20, or fewer for trace.budget": {},
    "every step": {"trace.every": 1, "trace.budget": 0},
}
#: Model -> steps a block (of mlp whole periods of the sampling, 100 steps), rounds, steps to settle.
SIZES = {"mlp": (1_600, 24, 100), "gpt": (40, 10, 4)}
SETTLE_S = 3.0


def measure(
    options: Sequence[str],
    num_steps: int,
    num_rounds: int,
    settle_steps: int,
    minutes: float,
    program: str = "blocks",
) -> dict[str, list[tuple[Block, float]]]:
    """Return the blocks of each arm, in the order of the rounds; no round begins after that many minutes."""
    shuffle = random.Random(0).sample
    until = monotonic() + minutes * 60
    blocks: dict[str, list[tuple[Block, float]]] = {arm: [] for arm in ARMS}
    with Program(program, *options) as training:
        training.block(steps=3 * settle_steps)
        for _ in range(num_rounds):
            if monotonic() > until:
                break
            for arm in shuffle(list(ARMS), len(ARMS)):
                settings = ARMS[arm]
                if settings is None:
                    training.block(steps=settle_steps)
                    blocks[arm].append(quiet_block(training, steps=num_steps))
                else:
                    attach(training, settle_steps, settings, settle_s=SETTLE_S)
                    blocks[arm].append(quiet_block(training, steps=num_steps))
                    detach(training, settle_steps)
    return blocks


def report(cell: str, measured: dict[str, list[tuple[Block, float]]]) -> str:
    """Return the table of one cell."""
    bare = [block for block, _ in measured[BARE]]
    rows = []
    for arm, pairs in measured.items():
        seen = [block for block, _ in pairs]
        ratios = [
            ratio([getattr(block, what) for block in seen], [getattr(block, what) for block in bare]).show_change()
            if arm != BARE and getattr(bare[0], what)
            else "-"
            for what in ("wall_s", "thread_cpu_s", "instructions", "median_s")
        ]
        mean = figure([block.per_piece_s for block in seen]).show(1e3, 3)
        rows.append([arm, mean, *ratios])
    headings = ["recorder", "ms a step", "time", "CPU of the thread", "instructions of the thread", "median step"]
    num_steps = bare[0].num_pieces
    others = sorted(cores for pairs in measured.values() for _, cores in pairs)
    about = (
        f"`{cell}`: {len(bare)} rounds, blocks of {num_steps} steps; change against the bare block of the round, "
        f"with the 95 % interval of its median. Other processes took {others[len(others) // 2]:.2f} cores "
        f"during half of the blocks, {others[-1]:.2f} during the worst."
    )
    return f"{about}\n\n{table(headings, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=tuple(SIZES), default="mlp")
    parser.add_argument("--compiled", action="store_true", help="torch.compile of the model")
    parser.add_argument("--ranks", type=int, default=1, help="more than one: DistributedDataParallel over gloo")
    parser.add_argument("--steps", type=int, help="steps per block")
    parser.add_argument("--rounds", type=int, help="blocks per arm; at least ten for a published figure")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no round after this time")
    args = parser.parse_args()
    num_steps, num_rounds, settle_steps = SIZES[args.model]
    options = ["--model", args.model, *["--compiled"] * args.compiled, "--ranks", str(args.ranks)]
    blocks = measure(options, args.steps or num_steps, args.rounds or num_rounds, settle_steps, args.minutes)
    print(report(" ".join(options), blocks))
    print()
    print(provenance())


if __name__ == "__main__":
    main()
