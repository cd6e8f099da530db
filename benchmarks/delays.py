"""Duration of `probe compare` for a large job: `python -m benchmarks.delays`.

The ranks are synthetic, in groups of TP and DP: their rows have noise, and one rank is late in each TP layer; or all
ranks of the first of two stages are, which make one call more in a step than those of the second. The measured time is
what the command spends on the answers of all ranks once it has them, from their JSON to the verdict and its table.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Mapping, Sequence
from time import perf_counter, process_time

import numpy as np

from probe_cli.cluster.compare.by.step import compare
from probe_cli.cluster.compare.comparison import Verdict
from probe_cli.cluster.compare.facts import Clock, Facts
from probe_cli.cluster.compare.questions import CALLS, FACTS, STEPS, Extent
from probe_cli.cluster.delays.rows import RankRows, Who

from .machine import provenance
from .spread import table

__all__ = ["main"]

START_S = 1_760_000_000.0
TRANSFER_S = 0.0002


def job(
    num_ranks: int,
    tp: int,
    num_layers: int,
    num_steps: int,
    slow: int | slice,
    late_s: float,
    second: int | None = None,
) -> list[RankRows]:
    """Make `num_layers` collectives per step in groups of `tp`, and one among the ranks of the same place in them. The
    ranks from `second` on do without the last of the former."""
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
        roles = {"tp": rank % tp, "dp": rank // tp}
        if second is not None:
            roles["pp"] = int(rank >= second)
            if rank >= second:
                calls = {name: np.delete(values, np.s_[num_layers - 1 :: per_step]) for name, values in calls.items()}
        unmeasured = ("forward", "backward", "evaluation", "generation", "other", "data_wait")
        steps = dict.fromkeys(unmeasured, np.full(num_steps, np.nan))
        steps |= {"number": numbers, "ended": ends[rank, 1:] + START_S, "duration": np.diff(ends[rank])}
        steps["optimizer"] = np.full(num_steps, 0.002)
        found.append(RankRows(Who(rank, f"host{rank // 8}", rank), steps, calls, roles))
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


def _as_json(columns: Mapping[str, np.ndarray], asked: Mapping[str, tuple[str, type | float]], newest: int) -> str:
    told = [_wired(columns[name][-newest:], kind) for name, (_, kind) in asked.items()]
    # What all rows have travels once.
    return json.dumps([[told[0], *(values[:1] if len(set(values)) == 1 else values for values in told[1:])]])


def _wired(values: np.ndarray, kind: type | float) -> list[object]:
    """The values as the wire has them: of a time, whole numbers of what `kind` says."""
    if not isinstance(kind, float):
        return list(values.tolist())
    return [None if np.isnan(value) else round(value * kind) for value in values.tolist()]


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


def _measured(ranks: list[RankRows]) -> list[object]:
    num_steps = len(ranks[0].steps["number"])
    extent = Extent(num_steps, len(ranks))
    told = [(rank.who, answer) for rank, answer in zip(ranks, answers(ranks, extent), strict=True)]
    num_calls = sum(min(extent.calls, len(rank.calls["start"])) for rank in ranks)
    ranks.clear()
    began, began_cpu = perf_counter(), process_time()
    verdict = compared(told, num_steps)
    took, took_cpu = perf_counter() - began, process_time() - began_cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size = sum(len(text) for _, answer in told for text in answer) / 1e6
    named = verdict.sentence.partition(" hold")[0] if verdict.ranks else "nobody"
    cells = [f"{took:.2f}", f"{took_cpu:.2f}", named, f"{verdict.share or 0:.1%}", f"{memory:.0f}"]
    return [num_calls, f"{size:.0f}", verdict.num_steps, *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 512, 2048])
    parser.add_argument("--tp", type=int, default=8)
    parser.add_argument("--layers", type=int, default=5, help="collectives of TP in a step")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rows: list[list[object]] = []
    for num_ranks in args.ranks:
        for slow, second in ((num_ranks // 3, None), (slice(num_ranks // 2), num_ranks // 2)):
            rows.append([num_ranks, *_measured(job(num_ranks, args.tp, args.layers, args.steps, slow, 0.002, second))])
    print(
        f"Groups of {args.tp} ranks, {args.layers} collectives in each of them in a step and one across them. One rank"
        " is late by 2 ms before each of them, or the first half of the ranks is, which make other calls than the"
        " second.\n"
    )
    headings = [
        "ranks",
        "rows of collectives",
        "MB of JSON",
        "steps analysed",
        "s",
        "s of CPU",
        "named",
        "with",
        "MiB at most",
    ]
    print(table(headings, rows))
    print()
    print(provenance())


if __name__ == "__main__":
    main()
