"""Asks one rank for the facts that a comparison needs.

Runs in the CLI on its event loop, for all ranks at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from probe_agent.errors import NoAnswer, ProbeError, QueryFailed
from probe_agent.wire import QueryRequest
from probe_cli.client import Client

from .facts import Facts, Who
from .questions import FACTS, Extent, Question

__all__ = ["question"]


@dataclass(frozen=True)
class _Rows:
    """The part of a QueryResult that is read here. Thousands of ranks are asked, and a description of fourteen columns
    takes a tenth of a millisecond to check."""

    rows: tuple[list[Any], ...]


def question(needs: Sequence[str], extent: Extent, timeout_s: float) -> Callable[[Client], Awaitable[Facts]]:
    """Return the question for each rank, whose identity the caller knows; a fact that it cannot tell is a gap."""

    async def ask(client: Client) -> Facts:
        told: dict[str, Any] = {}  # each by the field of Facts it fills
        errors: dict[str, ProbeError] = {}

        async def ask_for(name: str) -> None:
            try:
                told[name] = await _fact(client, FACTS[name], extent, timeout_s)
            except ProbeError as error:
                errors[name] = error

        of_others = [name for name in needs if FACTS[name].is_wanted is not None]
        await asyncio.gather(*(ask_for(name) for name in needs if name not in of_others))
        for name in of_others:
            is_wanted = FACTS[name].is_wanted
            if is_wanted is not None and is_wanted(told):
                await ask_for(name)
        if errors and not told:
            raise next(errors[name] for name in needs if name in errors)  # it has nothing to tell
        gaps = tuple(f"{name}: {errors[name].message}" for name in needs if name in errors)
        return Facts(Who(-1, "", 0), gaps=gaps, **told)

    return ask


async def _fact(client: Client, wanted: Question, extent: Extent, timeout_s: float) -> Any:
    async def rows(sql: str) -> Sequence[Any]:
        return (await client.send(_Rows, "POST", "/v1/query", QueryRequest(sql, timeout_s=timeout_s))).rows

    try:
        found = await rows(wanted.sql(extent))
    except QueryFailed:
        if wanted.older is None:
            raise
        found = await rows(wanted.older(extent))
    try:
        return wanted.read(found)
    except (ValueError, TypeError, IndexError) as wrong:
        raise NoAnswer(
            f"{client.endpoint} answered with rows that do not fit the question ({wrong})",
            "update the host server there to this version",
        ) from wrong
