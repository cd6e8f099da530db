"""Facts of a synthetic synchronous job: each rank takes its time, and waits in backward for the last."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from probe_cli.cluster.compare.facts import Clock, Columns, Facts, Who

__all__ = ["CALL", "STEP", "USUAL", "chain", "columns", "job", "rows_between", "without_calls"]

#: What each phase takes on each rank, in seconds.
USUAL = {"data_wait": 0.004, "forward": 0.010, "backward": 0.020, "optimizer": 0.001, "other": 0.002}
COMMUNICATION_S = 0.001
BEGAN = 1_700_000_000.0
STEP = {"evaluation": 0.0, "generation": 0.0, "sampled": False, "traced": False}
#: What a call is unless a test says otherwise: one of C++'s.
CALL = {
    "step": 0,
    "group": "0",
    "seq": 0,
    "op": "all_reduce",
    "peer": -1,
    "start": 0.0,
    "ended": 0.0,
    "wait": float("nan"),
    "phase": "backward",
    "wait_phase": "backward",
    "by_cpp": True,
    "on_device": False,
    "is_open": False,
}

Slow = Callable[[int, int], Mapping[str, float]]  # of rank and step: what is added to its phases


def columns(rows: Sequence[Mapping[str, Any]]) -> Columns:
    """Return rows as columns; text in the form in which queries return it."""
    if not rows:
        return {}
    text = [name for name, value in rows[0].items() if isinstance(value, str)]
    return {name: np.array([row[name] for row in rows], dtype=object if name in text else None) for name in rows[0]}


def rows_between(table: Columns, first: int, last: int | None = None) -> Columns:
    """Return some of the rows of a table."""
    return {name: values[first:last] for name, values in table.items()}


def job(
    num_ranks: int,
    num_steps: int,
    slow: Slow = lambda rank, step: {},
    *,
    noise: float = 0.05,
    seed: int = 1,
    hosts: int = 1,
    clocks: Mapping[str, float] | None = None,
    uncertainty: float = 0.0005,
    first_step: Callable[[int], int] = lambda rank: 0,
) -> list[Facts]:
    """Return the facts of each rank. `noise` is the scatter of each phase; `clocks` are the offsets of the hosts'
    clocks; ranks count their steps from `first_step`."""
    chance = random.Random(seed)
    names = [f"node{rank * hosts // num_ranks}" for rank in range(num_ranks)]
    offsets = dict(clocks or {})
    now = [BEGAN] * num_ranks
    steps: list[list[dict[str, Any]]] = [[] for _ in range(num_ranks)]
    calls: list[list[dict[str, Any]]] = [[] for _ in range(num_ranks)]
    for number in range(num_steps):
        own = []
        for rank in range(num_ranks):
            extra = slow(rank, number)
            own.append(
                {
                    name: usual * max(0.1, chance.gauss(1.0, noise)) + extra.get(name, 0.0)
                    for name, usual in USUAL.items()
                }
            )
        # Other comes first: what was done after the optimizer stepped. The collective is at the end of backward.
        called = [now[rank] + sum(own[rank].values()) - own[rank]["optimizer"] for rank in range(num_ranks)]
        over = max(called) + COMMUNICATION_S
        for rank in range(num_ranks):
            offset = offsets.get(names[rank], 0.0)
            waited = over - called[rank]
            ended = called[rank] + waited + own[rank]["optimizer"]
            mine = first_step(rank) + number
            steps[rank].append(
                {
                    "number": mine,
                    "ended": ended + offset,
                    "duration": ended - now[rank],
                    **own[rank],
                    **STEP,
                    "backward": own[rank]["backward"] + waited,
                    "sampled": number % 20 == 0,
                }
            )
            start = called[rank] + offset
            calls[rank].append({**CALL, "step": mine, "seq": number + 7, "start": start, "ended": over + offset})
            now[rank] = ended
    return [
        Facts(
            Who(rank, names[rank], 1000 + rank),
            steps=columns(steps[rank]),
            calls=columns(calls[rank]),
            clock=Clock(offsets.get(names[rank], 0.0), uncertainty, 6),
        )
        for rank in range(num_ranks)
    ]


def chain(
    num_steps: int,
    slow: Slow = lambda rank, step: {},
    late: Callable[[int, int], float] = lambda rank, step: 0.0,
    *,
    num_ranks: int = 4,
) -> list[Facts]:
    """Return the facts of ranks that hand data from one to the next, and back to the first: each waits for the one
    before, works, and sends. A rank takes the data `late` by so many seconds."""
    now = [BEGAN] * num_ranks
    steps: list[list[dict[str, Any]]] = [[] for _ in now]
    calls: list[list[dict[str, Any]]] = [[] for _ in now]

    def add(rank: int, op: str, peer: int, start: float, ended: float) -> None:
        call = {**CALL, "step": number, "seq": -1, "phase": "forward", "wait_phase": "forward", "by_cpp": False}
        times = {"start": start, "ended": ended, "wait": ended - start}
        calls[rank].append({**call, "op": op, "peer": peer % num_ranks, **times})

    def receive(rank: int) -> None:
        got = max(now[rank], sent) + COMMUNICATION_S / 2 + late(rank, number)
        add(rank, "recv", rank - 1, now[rank], got)
        now[rank] = got

    for number in range(num_steps):
        began, own, sent = list(now), [dict(slow(rank, number)) for rank in range(num_ranks)], 0.0
        for rank in range(num_ranks):
            if rank:
                receive(rank)
            now[rank] = sent = now[rank] + USUAL["forward"] + sum(own[rank].values())
            add(rank, "send", rank + 1, sent, sent)
        receive(0)
        for rank in range(num_ranks):
            took = now[rank] - began[rank]
            phases = {**dict.fromkeys(USUAL, 0.0), "forward": took - sum(own[rank].values()), **own[rank]}
            steps[rank].append({"number": number, "ended": now[rank], "duration": took, **phases, **STEP})
    return [
        Facts(Who(rank, "node0", 1000 + rank), columns(steps[rank]), columns(calls[rank]), clock=Clock(0.0, 0.0, 6))
        for rank in range(num_ranks)
    ]


def without_calls(facts: list[Facts]) -> list[Facts]:
    """Return the same job, with its collectives unseen."""
    return [replace(fact, calls={}) for fact in facts]
