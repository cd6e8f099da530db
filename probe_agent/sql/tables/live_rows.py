"""Rows of live tables, taken by the server while a query worker waits for them.

Runs in the host server, on a thread for each target, so that one that is stopped or holds its GIL delays no other. A
worker gets the rows and never a way to ask the targets.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from probe_agent.errors import NoAnswer
from probe_agent.targets import Target

from .declarations import live_tables
from .live_table import HostTable, LiveTable, Part, Row

__all__ = ["LiveRows", "TakeLive", "take_live"]

#: Targets that are asked at the same time for one query.
_MAX_THREADS = 32
#: How much longer we wait than a target may take: whoever asks it knows better why it did not answer.
_GRACE_S = 0.3

T = TypeVar("T")


@dataclass(frozen=True)
class LiveRows:
    """Rows of a live table now."""

    #: For each target that answered: its index among the targets, and its rows.
    rows: Sequence[tuple[int, Sequence[Row]]] = ()
    #: Parts of a table about the host.
    parts: Sequence[Part] = ()
    notes: Sequence[str] = ()
    #: Why a target did not answer, by its index.
    failures: Mapping[int, NoAnswer] = field(default_factory=dict)


#: Returns the rows of live tables by name. Raises ProbeError.
TakeLive = Callable[[Sequence[str]], Mapping[str, LiveRows]]


async def take_live(names: Sequence[str], targets: Sequence[Target], within_s: float) -> Mapping[str, LiveRows]:
    """Return the rows of the tables `names` from all targets that answer in time. Raises what a target objects to."""
    tables = [live_tables()[name] for name in names if name in live_tables()]
    calls: list[Callable[[], object]] = []
    for table in tables:
        calls += [_of_host(table, targets)] if issubclass(table, HostTable) else _of_each(table, targets, within_s)
    results = iter(await _side_by_side(calls, within_s + _GRACE_S))
    return {table.name: _gathered(table, targets, results, within_s) for table in tables}


def _of_host(table: type[HostTable], targets: Sequence[Target]) -> Callable[[], object]:
    return lambda: table.take_host(targets)


def _of_each(table: type[LiveTable], targets: Sequence[Target], within_s: float) -> Iterator[Callable[[], object]]:
    for target in targets:
        yield lambda target=target: table.take(target, within_s)  # type: ignore[misc]


def _gathered(
    table: type[LiveTable], targets: Sequence[Target], results: Iterator[object], within_s: float
) -> LiveRows:
    if issubclass(table, HostTable):
        parts, notes = _taken(next(results), table.name, "this host", within_s)
        return LiveRows(parts=parts, notes=notes)
    rows: list[tuple[int, Sequence[Row]]] = []
    all_notes: list[str] = []
    failures: dict[int, NoAnswer] = {}
    for at, target in enumerate(targets):
        try:
            found, notes = _taken(next(results), table.name, str(target), within_s)
        except NoAnswer as failure:
            failures[at] = failure
            continue
        rows.append((at, found))
        all_notes += [note for note in notes if note not in all_notes]
    return LiveRows(rows, notes=all_notes, failures=failures)


def _taken(result: Any, table: str, of: str, within_s: float) -> tuple[Sequence[Any], Sequence[str]]:  # Any: of a table
    if result is None:
        raise NoAnswer(
            f"{of} did not answer for {table} within {within_s:g} s",
            "read its stacks, which needs no GIL: probe PID backtrace --all",
        )
    if isinstance(result, BaseException):
        raise result
    rows, notes = result
    return rows, notes


async def _side_by_side(calls: Sequence[Callable[[], T]], within_s: float) -> list[T | BaseException | None]:
    """Return the results or errors of `calls` in their order; None for one that has not ended in time.

    Their threads are daemons: the process can end while one of them waits for its target."""
    loop = asyncio.get_running_loop()
    results: list[T | BaseException | None] = [None] * len(calls)
    left = iter(range(len(calls)))
    lock = threading.Lock()
    running = min(_MAX_THREADS, len(calls))
    ended = asyncio.Event()

    def run() -> None:
        nonlocal running
        while True:
            with lock:
                at = next(left, None)
            if at is None:
                break
            try:
                results[at] = calls[at]()
            except BaseException as error:  # noqa: BLE001  # raised by whoever reads the result
                results[at] = error
        with lock:
            running -= 1
            is_last = not running
        if is_last:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended.set)

    for _ in range(running):
        threading.Thread(target=run, daemon=True).start()
    if calls:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ended.wait(), within_s)
    return list(results)
