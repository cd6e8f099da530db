"""A closer look at the ranks to blame: what they wait for, and whether they are still there.

What a rank waits for is asked after the two looks, and by then it may have gone on: a thread that has just saved is not
seen any more, and its rank would seem to wait for nothing. So a hang is said only if a third look finds these ranks
where they were. Runs in the CLI on its event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Protocol, TypeVar

from probe_cli.client import Client

from .details import Details, details
from .looks import Look, look
from .verdict import State, Verdict

__all__ = ["AskRanks", "looked_closer"]

T = TypeVar("T")

#: Of more ranks than this, what they wait for is not asked.
MAX_ASKED = 4


class AskRanks(Protocol):
    """Puts a question to some ranks, all at once; returns what those said that have answered."""

    def __call__(
        self, question: Callable[[Client], Awaitable[T]], ranks: Sequence[int], /
    ) -> Awaitable[Mapping[int, T]]: ...


async def looked_closer(
    judged: Callable[..., Verdict],
    before: Mapping[int, Look],
    after: Mapping[int, Look],
    ask: AskRanks,
    *,
    between_s: float,
    timeout_s: float,
) -> Verdict:
    """Return the verdict on two looks, `between_s` apart, and on what the ranks to blame wait for. `judged` is `judge`
    (verdict.py) without what is given here."""
    verdict = judged(before, after, between_s=between_s)
    if verdict.state is State.NONE or not verdict.ranks:
        return verdict
    began = monotonic()

    async def waits_for(rank: int) -> Mapping[int, Details]:
        has_stepped = rank in after and after[rank].steps is not None
        return await ask(details(verdict.doing[rank], timeout_s, has_stepped=has_stepped), [rank])

    blamed = [rank for rank in verdict.ranks[:MAX_ASKED] if rank in verdict.doing]
    told = await asyncio.gather(*map(waits_for, blamed))
    found = {rank: one for answers in told for rank, one in answers.items()}
    verdict = judged(before, after, between_s=between_s, details=found)
    doubtful = [rank for rank, one in found.items() if one.sentences]
    if verdict.state is not State.HANGS or not doubtful:
        return verdict
    last = {**after, **await ask(look(timeout_s), doubtful)}
    again = judged(after, last, between_s=monotonic() - began, details=found)
    return again if again.state in (State.NONE, State.SLOW) else verdict
