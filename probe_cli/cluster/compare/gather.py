"""Asks one rank for the facts that a comparison needs.

Runs in the CLI on its event loop, for all ranks at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from probe_agent.errors import NoAnswer, ProbeError, QueryFailed
from probe_agent.wire import QueryRequest, TargetInfo
from probe_cli.client import Client
from probe_cli.cluster.by_host import ByHost
from probe_cli.endpoint import Endpoint

from .facts import Facts, Who
from .questions import FACTS, Extent

__all__ = ["question"]


@dataclass(frozen=True)
class _Rows:
    """The part of a QueryResult that is read here. Thousands of ranks are asked, and a description of fourteen columns
    takes a tenth of a millisecond to check."""

    rows: tuple[list[Any], ...]


def question(
    needs: Sequence[str],
    extent: Extent,
    timeout_s: float,
    targets: Mapping[Endpoint, TargetInfo] = MappingProxyType({}),
) -> Callable[[Client], Awaitable[Facts]]:
    """Return the question for each rank, whose identity the caller knows; a fact that it cannot tell is a gap. Ranks of
    one host that are among `targets`, all that are asked, tell together what they have recorded."""
    first = [name for name in needs if FACTS[name].is_wanted is None]
    recorded = [name for name in first if not FACTS[name].is_live]
    by_host = ByHost({name: FACTS[name].sql(extent) for name in recorded}, timeout_s, targets)

    async def ask(client: Client) -> Facts:
        told: dict[str, Any] = {}  # each by the field of Facts it fills
        errors: dict[str, ProbeError] = {}

        async def ask_for(names: Sequence[str]) -> None:
            try:
                told.update(await _facts(client, names, extent, timeout_s))
            except QueryFailed as failure:
                if len(names) == 1:
                    errors[names[0]] = failure
                else:  # one of them has failed for all
                    await asyncio.gather(*(ask_for([name]) for name in names))
            except ProbeError as error:
                errors.update(dict.fromkeys(names, error))

        async def ask_for_recorded() -> None:
            known = await by_host.told(client)
            for name, rows in known.items():
                try:
                    told[name] = _fact(client, name, _values(rows))
                except NoAnswer as failure:
                    errors[name] = failure
            await ask_for([name for name in recorded if name not in known])

        await asyncio.gather(ask_for_recorded(), *(ask_for([name]) for name in first if name not in recorded))
        for name in needs:
            is_wanted = FACTS[name].is_wanted
            if is_wanted is not None and is_wanted(told):
                await ask_for([name])
        if errors and not told:
            raise next(errors[name] for name in needs if name in errors)  # it has nothing to tell
        gaps = tuple(f"{name}: {errors[name].message}" for name in needs if name in errors)
        return Facts(Who(-1, "", 0), gaps=gaps, **told)

    return ask


async def _facts(client: Client, names: Sequence[str], extent: Extent, timeout_s: float) -> Mapping[str, Any]:
    """Ask for `names` in one request: five take the hosts of thousands of ranks nearly twice the time."""
    if not names:
        return {}
    statements = [FACTS[name].sql(extent) for name in names]
    try:
        found = await _rows_of(client, statements, timeout_s)
    except QueryFailed:
        older = FACTS[names[0]].older
        if len(names) > 1 or older is None:
            raise
        found = await _rows_of(client, [older(extent)], timeout_s)
    return {name: _fact(client, name, rows) for name, rows in zip(names, found, strict=True)}


def _fact(client: Client, name: str, rows: Sequence[Sequence[Any]]) -> Any:
    try:
        return FACTS[name].read(rows)
    except (ValueError, TypeError, IndexError, AttributeError) as wrong:
        raise NoAnswer(
            f"{client.endpoint} answered with rows that do not fit the question ({wrong})",
            "update the host server there to this version",
        ) from wrong


async def _rows_of(client: Client, statements: Sequence[str], timeout_s: float) -> list[list[list[Any]]]:
    """The rows of each of `statements`."""
    # Named, or the statements would come back as the names of the columns.
    lists = ", ".join(f'(SELECT list(r) FROM ({sql}) AS r) AS "{at}"' for at, sql in enumerate(statements))
    told = (await client.send(_Rows, "POST", "/v1/query", QueryRequest(f"SELECT {lists}", timeout_s=timeout_s))).rows
    return [_values(rows) for rows in told[0]]


def _values(rows: Sequence[Mapping[str, Any]] | None) -> list[list[Any]]:
    return [list(row.values()) for row in rows or ()]
