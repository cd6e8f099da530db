"""Facts of a synchronous job that never ran: each rank takes its time, and waits in backward for the last."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from probe_cli.cluster.compare.facts import Call, Clock, Facts, Step, Who

__all__ = ["USUAL", "job", "without_calls"]

#: What each phase takes on each rank, in seconds.
USUAL = {"data_wait": 0.004, "forward": 0.010, "backward": 0.020, "optimizer": 0.001, "other": 0.002}
COMMUNICATION_S = 0.001
BEGAN = 1_700_000_000.0

Slow = Callable[[int, int], Mapping[str, float]]  # of rank and step: what is added to its phases


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
    in_step: bool = True,
) -> list[Facts]:
    """The facts of each rank. `noise` is the scatter of each phase; `clocks` are the offsets of the hosts' clocks;
    ranks count their steps from `first_step`; without `in_step` they do not wait for each other."""
    chance = random.Random(seed)
    names = [f"node{rank * hosts // num_ranks}" for rank in range(num_ranks)]
    offsets = dict(clocks or {})
    now = [BEGAN] * num_ranks
    steps: list[list[Step]] = [[] for _ in range(num_ranks)]
    calls: list[list[Call]] = [[] for _ in range(num_ranks)]
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
            waited = over - called[rank] if in_step else 0.0
            ended = called[rank] + waited + own[rank]["optimizer"]
            sampled = number % 20 == 0
            mine = first_step(rank) + number
            steps[rank].append(
                Step(
                    mine,
                    ended + offset,
                    ended - now[rank],
                    own[rank]["data_wait"],
                    own[rank]["forward"] if sampled else None,
                    own[rank]["backward"] + waited,
                    own[rank]["optimizer"],
                    own[rank]["other"] + (0.0 if sampled else own[rank]["forward"]),
                    sampled,
                )
            )
            if in_step:
                calls[rank].append(Call(mine, "0", number + 7, "allreduce", called[rank] + offset, None, True))
            now[rank] = ended
    return [
        Facts(
            Who(rank, names[rank], 1000 + rank),
            steps=tuple(steps[rank]),
            calls=tuple(calls[rank]),
            clock=Clock(offsets.get(names[rank], 0.0), uncertainty, 6),
        )
        for rank in range(num_ranks)
    ]


def without_calls(facts: list[Facts]) -> list[Facts]:
    """The same job, its collectives unseen."""
    return [Facts(fact.who, steps=fact.steps, clock=fact.clock) for fact in facts]
