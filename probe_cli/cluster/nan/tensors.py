"""Parameters, gradients and buffers of every rank as their recorders read them, and what follows in one sentence.

Runs in the CLI on its event loop; each rank reads between its own steps, all ranks at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from probe_agent.errors import NoAnswer, QueryFailed
from probe_agent.wire import LookedAt, QueryRequest, QueryResult, TensorsLine, TensorsRequest
from probe_cli.client import Client
from probe_cli.text import num_ranks, sum_up

__all__ = ["Loss", "Reading", "are_finite", "ask_loss", "gaps", "looked_at", "read_tensors", "sentence"]

_LOSS = (
    "WITH known AS (SELECT step, loss FROM python.steps WHERE loss IS NOT NULL)"
    " SELECT count(*), max(step), min(step) FILTER (WHERE step > (SELECT coalesce(max(step), -1) FROM known"
    " WHERE isfinite(loss))), arg_max(loss, step) FROM known"
)
_QUERY_S = 5.0


@dataclass(frozen=True)
class Loss:
    """The newest recorded loss of a rank; `since` is the first step from which on it is not finite."""

    step: int
    since: int | None
    value: str

    def __str__(self) -> str:
        if self.since is None:
            return f"the loss is finite up to step {self.step}"
        return f"the loss is {self.value} since step {self.since}"


@dataclass(frozen=True)
class Reading:
    """What one rank has read."""

    line: TensorsLine
    loss: Loss | None

    def rows(self) -> Iterator[Mapping[str, object]]:
        """The tensors by the names of the columns."""
        return (dict(zip(self.line.columns, row, strict=True)) for row in self.line.rows)

    @property
    def is_finite(self) -> bool:
        is_loss_finite = self.loss is None or self.loss.since is None
        return is_loss_finite and not any(kind.not_finite for kind in self.line.looked_at)


def read_tensors(
    what: Literal["nan", "grads", "parameters"], budget_ms: float, timeout_s: float
) -> Callable[[Client], Awaitable[Reading]]:
    """The question to one rank; only `nan` is also about its loss."""
    request = TensorsRequest(what, budget_ms, timeout_s)

    async def ask(client: Client) -> Reading:
        async with contextlib.aclosing(client.lines(TensorsLine, "/v1/tensors", request)) as lines:  # type: ignore[type-var]  # a generator, as its type does not say
            async for line in lines:
                if line.done:
                    return Reading(line, await ask_loss(client) if what == "nan" else None)
        raise NoAnswer(f"{client.endpoint} broke off: the process ended, or was detached", "see: probe list --dead")

    return ask


async def ask_loss(client: Client) -> Loss | None:
    """The newest loss in the rank's ring, if it has one."""
    try:
        told = await client.send(QueryResult, "POST", "/v1/query", QueryRequest(_LOSS, timeout_s=_QUERY_S))
    except (NoAnswer, QueryFailed):
        return None
    num, step, since, value = told.rows[0]
    if not num or not isinstance(step, int):
        return None
    return Loss(step, since if isinstance(since, int) else None, str(value).replace("Infinity", "infinite"))


def sentence(readings: Mapping[int, Reading]) -> str:
    """What was found, over all ranks."""
    bad = {rank: one for rank, one in readings.items() if not one.is_finite}
    if not bad:
        return _all_finite(readings)
    ranks_with: dict[str, list[int]] = {}
    for rank, reading in bad.items():
        ranks_with.setdefault(_of_rank(reading), []).append(rank)
    parts = [f"{num_ranks(ranks)}: {said}" for said, ranks in ranks_with.items()]
    if others := sorted(set(readings) - set(bad)):
        parts.append(f"{num_ranks(others)}: all finite")
    return sum_up(parts)


def are_finite(readings: Mapping[int, Reading]) -> bool:
    """Whether nothing was found."""
    return all(one.is_finite for one in readings.values())


def _of_rank(reading: Reading) -> str:
    counts = [f"{kind.not_finite} of {kind.read} {kind.kind}s" for kind in reading.line.looked_at if kind.not_finite]
    said = []
    if counts:
        first = next(row for row in reading.rows() if row["nan"] or row["inf"])
        steps = [kind.last_step for kind in reading.line.looked_at if kind.last_step is not None]
        verb = "is" if counts[0].startswith("1 ") and not counts[1:] else "are"
        said.append(f"{', '.join(counts)} {verb} not finite after step {max(steps)}, first {_shown(first)}")
    if reading.loss is not None and (reading.loss.since is not None or said):
        said.append(str(reading.loss))
    if not counts:
        said.append("everything read is finite")
    return "; ".join(said)


def _shown(row: Mapping[str, object]) -> str:
    of = f"{row['module']}.{row['tensor']}" if row["module"] else str(row["tensor"])
    counted = [f"{row[key]} {name}" for key, name in (("nan", "NaN"), ("inf", "infinite")) if row[key]]
    return f"the {row['kind']} of {of} ({', '.join(counted)} of {row['values']} values)"


def _all_finite(readings: Mapping[int, Reading]) -> str:
    read = [kind for one in readings.values() for kind in one.line.looked_at if kind.read]
    if not read:
        return "nothing was read"
    losses = [one.loss for one in readings.values() if one.loss is not None]
    of_loss = f"; the loss is finite up to step {min(loss.step for loss in losses)}" if losses else ""
    return f"nothing found: {looked_at(readings)}{of_loss}"


def looked_at(readings: Mapping[int, Reading]) -> str:
    """What was read: `12 gradients, 12 parameters of 2 ranks (0-1), 5,234 values, after steps 4-5`."""
    kinds: dict[str, list[LookedAt]] = {}
    for one in readings.values():
        for kind in one.line.looked_at:
            kinds.setdefault(kind.kind, []).append(kind)
    counts = []
    for name, of_ranks in kinds.items():
        read, num = sum(kind.read for kind in of_ranks), sum(kind.tensors for kind in of_ranks)
        counts.append(f"{read} of {num} {name}s")
    every = [kind for of_ranks in kinds.values() for kind in of_ranks]
    steps = [step for kind in every for step in (kind.first_step, kind.last_step) if step is not None]
    values = sum(kind.values for kind in every)
    when = ""
    if steps:
        first, last = min(steps), max(steps)
        when = f", after step {first}" if first == last else f", after steps {first} to {last}"
    return f"{', '.join(counts)} on {num_ranks(readings)}, {values:,} values{when}"


def gaps(readings: Mapping[int, Reading], missing: Sequence[int]) -> list[str]:
    """What was not looked at, each in a sentence; what is known of all ranks then is not the whole."""
    found = [f"nothing is known of {num_ranks(missing)}"] if missing else []
    for rank, one in sorted(readings.items()):
        if one.line.state != "finished" or any(kind.unreadable for kind in one.line.looked_at):
            told = "; ".join(one.line.notes) or "not everything was read"
            found.append(f"rank {rank}: {told}")
    return found
