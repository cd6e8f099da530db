"""A second look of a rule at a job whose verdict is known: what `verdict_of` would have found out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from probe_agent.wire import TargetInfo
from probe_cli.diagnose.finding import Certainty, Finding
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rules import rules
from probe_cli.endpoint import LocalProcess

__all__ = ["TARGET", "Answers", "Told", "looked"]

TARGET = TargetInfo(
    pid=100, rank=0, local_rank=0, world_size=2, host="node1", uid=0, alive=True, state="running", step=7,
    step_age_s=0.1, age_s=9.0, command=("python", "train.py"), python="3.11.7", torch="2.13.0", version="0.1.0",
    how="planned", attached_at=0.0, folder="/nowhere", job="kfmcga", store="node1:29500",
)  # fmt: skip


class Told(Job):
    """A job of `num_ranks` ranks that answers what it is asked once with what was given, or raises it."""

    def __init__(self, num_ranks: int = 2, **known: object) -> None:
        targets = [replace(TARGET, pid=100 + rank, rank=rank, world_size=num_ranks) for rank in range(num_ranks)]
        super().__init__({LocalProcess(target.pid): target for target in targets}, 1.0)
        self._known = {name.replace("_", " "): value for name, value in known.items()}

    async def once(self, name: str, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if isinstance(known := self._known[name], Exception):
            raise known
        return known


class Answers(Told):
    """A job of one rank that answers each ask with the next rows, and with the last ones from then on."""

    def __init__(self, *asked: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(1)
        self._asked = list(asked)

    async def once(self, name: str, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await make()

    async def rows(self, sql: str, rank: int) -> list[Mapping[str, Any]]:
        return list(self._asked.pop(0) if len(self._asked) > 1 else self._asked[0])


def looked(name: str, job: Job, found: Sequence[Finding] = (), **limits: float) -> list[Finding]:
    """What the rule makes of `found`, or of a suspicion, when it looks."""
    rule = rules()[name]
    assert rule.look is not None
    suspected = found or [Finding("", Certainty.SUSPECTED, since_step=199)]
    thresholds = rule.limits({f"{name}.{key}": value for key, value in limits.items()})
    return list(asyncio.run(_awaited(rule.look(job, suspected, thresholds))))


async def _awaited(look: Any) -> Any:
    return await look
