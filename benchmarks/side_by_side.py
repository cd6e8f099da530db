"""Probe beside `probing` 0.2.4 from PyPI, on the same job: `python -m benchmarks.side_by_side`.

First the cost of each for the job: fresh processes, interleaved in shuffled rounds. Then the cost of a query and who
pays it: both record every module of every step until they hold a million rows, and are queried while the job runs.
"""

from __future__ import annotations

import argparse
import random
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic, perf_counter

from . import agent
from .http_query import times
from .machine import provenance
from .memory import KINDS, memory
from .process import Block, Program
from .query import RING_ROWS, fill
from .spread import figure, ratio, table
from .statements import COUNT, STATEMENTS
from .tools import ARMS, Arm, Asked, install_probing, refusal_of_probing

__all__ = ["main"]

#: Model -> steps to settle, steps measured.
STEPS = {"mlp": (500, 2_000), "gpt": (10, 100)}
#: By then Probe has looked at what its sampling costs, as it has in a run of hours.
SETTLE_S = 3.0
#: While one client asks: seconds a block, blocks.
BLOCK_S, NUM_BLOCKS = 2.0, 3
SQL = {name: STATEMENTS[name] for name in ("GROUP BY module, all rows", "slowest modules")}


def train(model: str, arm: Arm, python: str) -> tuple[Block, float, float]:
    """Return a block of a fresh process with the tool in it, MiB of its memory then, seconds until it was ready."""
    num_settle, num_steps = STEPS[model]
    began = perf_counter()
    with Program("blocks", "--model", model, python=python, environment=arm.environment()) as training:
        ready_s = perf_counter() - began
        if arm.every is not None:
            agent.attach(training, num_settle, arm.settings, settle_s=SETTLE_S)
        else:
            training.block(steps=2 * num_settle)
        block = training.block(steps=num_steps)
        mib = sum(memory(training.pid)[kind] for kind in KINDS)
    return block, mib, ready_s


def compare_training(model: str, python: str, num_rounds: int, minutes: float) -> str:
    """Return the table of what each tool costs the job."""
    shuffle = random.Random(0).sample
    seen: dict[str, list[tuple[Block, float, float]]] = {arm.name: [] for arm in ARMS}
    until = monotonic() + minutes * 60
    for _ in range(num_rounds):
        if monotonic() > until:
            break
        for arm in shuffle(ARMS, len(ARMS)):
            seen[arm.name].append(train(model, arm, python))
    bare = seen[ARMS[0].name]
    rows = []
    for name, measured in seen.items():
        blocks = [block for block, _, _ in measured]
        rows.append(
            [
                name,
                figure([block.per_piece_s for block in blocks]).show(1e3, 3),
                *(
                    ratio(
                        [getattr(block, what) for block in blocks], [getattr(block, what) for block, _, _ in bare]
                    ).show_change()
                    if measured is not bare and getattr(bare[0][0], what)
                    else "-"
                    for what in ("wall_s", "instructions")
                ),
                f"{figure([block.longest_s for block in blocks]).median * 1e3:.1f}",
                figure([mib - base for (_, mib, _), (_, base, _) in zip(measured, bare, strict=True)]).show(1, 1),
                figure([ready_s for _, _, ready_s in measured]).show(1, 2),
            ]
        )
    headings = [
        f"{model}, {len(bare)} processes each", "ms a step", "time", "instructions of the thread",
        "longest step, ms",
        "MiB more than bare, rings included", "s until ready",
    ]  # fmt: skip
    return table(headings, rows)


def asked_while_training(asked: Asked, ask: Callable[[], object], seconds: float) -> Block:
    """Run a block during which one client repeats its request as soon as it has an answer."""
    ended = threading.Event()

    def client() -> None:
        while not ended.is_set():
            ask()

    thread = threading.Thread(target=client)
    thread.start()
    block = asked.training.block(seconds=seconds)
    ended.set()
    thread.join()
    return block


def compare_questions(arm: Arm, python: str, num_questions: int) -> list[list[object]]:
    """Return the rows of one tool: answers over HTTP and by command, and the job's speed meanwhile."""
    rows: list[list[object]] = []
    with Asked.start(arm, python, RING_ROWS) as asked:

        def count() -> int:
            asked.connection.close()
            return asked.count(COUNT)

        num_rows = fill(asked.training, count)
        for name, sql in SQL.items():
            http = times(asked.connection, partial(asked.http, sql), num_questions)
            commands = [asked.command_s(sql) for _ in range(num_questions)]
            alone = [asked.training.block(seconds=BLOCK_S) for _ in range(NUM_BLOCKS)]
            asked.connection.close()
            busy = [asked_while_training(asked, partial(asked.http, sql), BLOCK_S) for _ in range(NUM_BLOCKS)]
            rows.append(
                [
                    arm.name,
                    f"{num_rows:,}",
                    name,
                    figure(http).show(1e3, 1),
                    figure(commands).show(1e3, 0),
                    figure([1 / block.per_piece_s for block in alone]).show(1, 0),
                    figure([1 / block.per_piece_s for block in busy]).show(1, 0),
                    f"{max(block.longest_s for block in busy) * 1e3:.0f}",
                ]
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=tuple(STEPS), action="append", help="models to train; all by default")
    parser.add_argument("--rounds", type=int, default=10, help="processes per arm and model; 0 skips this part")
    parser.add_argument("--questions", type=int, default=15, help="queries per cell; 0 skips this part")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no round of a model after this time")
    args = parser.parse_args()
    python = install_probing()
    refusal = refusal_of_probing(python)
    print(f"`probing -t PID inject` as installed from PyPI: {f'`{refusal}`' if refusal else 'attaches'}.\n")
    for model in (args.model or STEPS) if args.rounds else ():
        print(compare_training(model, python, args.rounds, args.minutes), flush=True)
        print()
    if args.questions:
        headings = [
            "tool", "rows", "statement", "HTTP answer, ms", "answer of its command, ms", "steps/s",
            "steps/s while asked over HTTP", "longest step then, ms",
        ]  # fmt: skip
        everything = [arm for arm in ARMS if arm.every == 1 or arm.spec == "random"]
        for arm in everything:
            print(table(headings, compare_questions(arm, python, args.questions)), end="\n\n", flush=True)
    print(provenance())


if __name__ == "__main__":
    main()
