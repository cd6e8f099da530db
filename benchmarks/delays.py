"""Duration of `probe compare` for a large job: `python -m benchmarks.delays`.

The ranks are synthetic, in groups of TP and DP: their rows have noise and one rank that is late in each TP layer. The
measured time is what the command spends on the answers of all ranks once it has them, from their JSON to the verdict
and its table.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Sequence
from time import perf_counter, process_time

import numpy as np

from probe_cli.cluster.compare.by.step import compare
from probe_cli.cluster.compare.comparison import Verdict
from probe_cli.cluster.compare.facts import Clock, Facts
from probe_cli.cluster.compare.questions import FACTS, Extent
from probe_cli.cluster.delays.rows import RankRows, Who

from .machine import provenance
from .spread import table

__all__ = ["main"]

START_S = 1_760_000_000.0
TRANSFER_S = 0.0002
#: Columns of an answer, in their order.
STEPS = (
    "number",
    "ended",
    "duration",
    "data_wait",
    "forward",
    "backward",
    "optimizer",
    "evaluation",
    "generation",
    "other",
    "sampled",
    "traced",
)
CALLS = (
    "step",
    "group",
    "seq",
    "op",
    "peer",
    "bytes",
    "start",
    "ended",
    "wait",
    "phase",
    "wait_phase",
    "by_cpp",
    "on_device",
    "is_open",
)


def job(num_ranks: int, tp: int, num_layers: int, num_steps: int, slow: int, late_s: float) -> list[RankRows]:
    """Make `num_layers` collectives per step in groups of `tp`, and one among the ranks of the same place in them."""
    chance = np.random.default_rng(1)
    per_step = num_layers + 1
    own = 0.004 * (1 + 0.05 * chance.gamma(2.0, 0.7, (num_ranks, num_steps, per_step)))
    own[slow, :, :num_layers] += late_s
    now = np.zeros(num_ranks)
    starts, waits = np.empty((2, num_ranks, num_steps, per_step))
    ends = np.empty((num_ranks, num_steps + 1))
    ends[:, 0] = 0.0
    for step in range(num_steps):
        for number in range(per_step):
            now = now + own[:, step, number]
            starts[:, step, number] = now
            grid = now.reshape(-1, tp)
            last = grid.max(axis=1 if number < num_layers else 0, keepdims=True)
            over = np.broadcast_to(last, grid.shape).ravel() + TRANSFER_S
            waits[:, step, number] = over - now
            now = over
        now = now + 0.002
        ends[:, step + 1] = now
    numbers = np.arange(num_steps)
    seq = np.arange(num_steps)[:, None] * num_layers + np.arange(num_layers)
    seq = np.concatenate([seq, np.arange(num_steps)[:, None]], axis=1).ravel()
    rest = num_steps * per_step
    found = []
    for rank in range(num_ranks):
        groups = [f"tp{rank // tp}"] * num_layers + [f"dp{rank % tp}"]
        start = starts[rank].ravel() + START_S
        calls = {
            "step": np.repeat(numbers, per_step),
            "group": np.array(groups * num_steps),
            "seq": seq,
            "op": np.array(["all_reduce"] * rest),
            "peer": np.full(rest, -1),
            "start": start,
            "ended": start + waits[rank].ravel(),
            "wait": waits[rank].ravel(),
            "phase": np.array(["forward"] * rest),
            "by_cpp": np.zeros(rest, dtype=bool),
            "on_device": np.zeros(rest, dtype=bool),
        }
        unmeasured = ("forward", "backward", "evaluation", "generation", "other", "data_wait")
        steps = dict.fromkeys(unmeasured, np.full(num_steps, np.nan))
        steps |= {"number": numbers, "ended": ends[rank, 1:] + START_S, "duration": np.diff(ends[rank])}
        steps["optimizer"] = np.full(num_steps, 0.002)
        found.append(RankRows(Who(rank, f"host{rank // 8}", rank), steps, calls, {"tp": rank % tp, "dp": rank // tp}))
    return found


def answers(ranks: list[RankRows], extent: Extent) -> list[tuple[str, str]]:
    """Return what each rank answers to the questions of `probe compare` about its steps and its calls."""
    found = []
    for rank in ranks:
        num_steps, num_calls = len(rank.steps["number"]), len(rank.calls["start"])
        steps = {**rank.steps, **dict.fromkeys(("sampled", "traced"), np.zeros(num_steps, dtype=bool))}
        calls = {**rank.calls, "bytes": np.full(num_calls, 1 << 20), "wait_phase": rank.calls["phase"]}
        calls["is_open"] = np.zeros(num_calls, dtype=bool)
        found.append((_as_json(steps, STEPS, extent.steps), _as_json(calls, CALLS, extent.calls)))
    return found


def _as_json(columns: dict[str, np.ndarray], names: Sequence[str], newest: int) -> str:
    return json.dumps([[columns[name][-newest:].tolist() for name in names]])


def compared(told: Sequence[tuple[Who, tuple[str, str]]], num_steps: int) -> Verdict:
    """Do what `probe compare` does with these answers."""
    facts = [
        Facts(
            who,
            steps=FACTS["steps"].read(json.loads(steps)),
            calls=FACTS["calls"].read(json.loads(calls)),
            clock=Clock(0.0, 1e-4),
        )
        for who, (steps, calls) in told
    ]
    return compare(facts, num_steps).verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 512, 2048])
    parser.add_argument("--tp", type=int, default=8)
    parser.add_argument("--layers", type=int, default=5, help="collectives of TP in a step")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rows: list[list[object]] = []
    for num_ranks in args.ranks:
        slow = num_ranks // 3
        ranks = job(num_ranks, args.tp, args.layers, args.steps, slow, 0.002)
        extent = Extent(args.steps, num_ranks)
        told = [(rank.who, answer) for rank, answer in zip(ranks, answers(ranks, extent), strict=True)]
        num_calls = sum(min(extent.calls, len(rank.calls["start"])) for rank in ranks)
        del ranks
        began, began_cpu = perf_counter(), process_time()
        verdict = compared(told, args.steps)
        took, took_cpu = perf_counter() - began, process_time() - began_cpu
        assert verdict.ranks == (slow,), verdict.sentence
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        size = sum(len(text) for _, answer in told for text in answer) / 1e6
        figures = [f"{took:.2f}", f"{took_cpu:.2f}", f"{verdict.share:.1%}", f"{memory:.0f}"]
        rows.append([num_ranks, num_calls, f"{size:.0f}", verdict.num_steps, *figures])
    print(
        f"Groups of {args.tp} ranks, {args.layers} collectives in each of them in a step and one across them; one rank"
        " is late by 2 ms before each of them, and it is named.\n"
    )
    headings = [
        "ranks",
        "rows of collectives",
        "MB of JSON",
        "steps analysed",
        "s",
        "s of CPU",
        "named with",
        "MiB at most",
    ]
    print(table(headings, rows))
    print()
    print(provenance())


if __name__ == "__main__":
    main()
