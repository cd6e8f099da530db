"""What one target says for a report or an export: its stacks and the newest rows of its tables. To add a part, add it
to PARTS.

Runs in the CLI on its event loop, for all targets at once. Nothing that runs code in a target is asked for, so a report
can be made with the read token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from probe_agent.errors import ProbeError
from probe_agent.wire import Backtrace, QueryRequest, TableInfo, TableList, quoted
from probe_cli.client import Client

from .stacks import ask_stacks

__all__ = ["LEFT_OUT_TABLES", "TABLES", "Limits", "Taken", "take"]

ARROW = "application/vnd.apache.arrow.stream"
#: `probe.audit` holds the code that others have evaluated.
LEFT_OUT_TABLES = ("probe.audit",)
#: A hung rank is asked for these before the others.
_FIRST = ("torch.flight_recorder", "torch.process_groups")
#: A target that has not answered for so many live tables is not asked for more of them.
MAX_SILENT = 2


@dataclass(frozen=True)
class Limits:
    """How much of one target."""

    #: Newest rows of each table.
    num_rows: int
    #: For one question.
    timeout_s: float
    #: Only these tables; all of them if empty.
    only: frozenset[str] = frozenset()


@dataclass
class Taken:
    """What one target has said; `left_out` is what it has not, and why."""

    stacks: Backtrace | None = None
    #: Rows as Arrow streams, by table.
    rows: dict[str, bytes] = field(default_factory=dict)
    tables: tuple[TableInfo, ...] = ()
    left_out: list[str] = field(default_factory=list)


async def _stacks(client: Client, limits: Limits, taken: Taken) -> None:
    try:
        taken.stacks = await ask_stacks(client, all_threads=True, tasks=True, workers=True)
    except ProbeError as error:
        taken.left_out.append(f"stacks: {error.message}")


async def _tables(client: Client, limits: Limits, taken: Taken) -> None:
    try:
        listed = await client.get(TableList, "/v1/tables")
    except ProbeError as error:
        taken.left_out.append(f"all tables: {error.message}")
        return
    taken.tables = tuple(
        table
        for table in listed.tables
        if table.name not in LEFT_OUT_TABLES and (not limits.only or table.name in limits.only)
    )
    num_silent = 0
    for table in sorted(taken.tables, key=lambda table: table.name not in _FIRST):
        if table.rows == 0:
            continue
        if table.kind == "live" and num_silent == MAX_SILENT:
            taken.left_out.append(f"{table.name}: not asked for, after {MAX_SILENT} others had no answer")
            continue
        try:
            data = await client.data("/v1/query", _newest(table, limits), ARROW)
        except ProbeError as error:
            num_silent += table.kind == "live"
            taken.left_out.append(f"{table.name}: {error.message}")
            continue
        taken.rows[table.name] = data.body
        if table.rows is not None and table.rows > limits.num_rows:
            taken.left_out.append(f"{table.name}: the oldest {table.rows - limits.num_rows:,} of {table.rows:,} rows")


def _newest(table: TableInfo, limits: Limits) -> QueryRequest:
    is_timed = any(column.name == "ts" for column in table.columns)
    sql = f"FROM {quoted(*table.name.split('.'))}{' ORDER BY ts DESC' if is_timed else ''} LIMIT {limits.num_rows}"
    if is_timed:
        sql = f"FROM ({sql}) ORDER BY ts"
    return QueryRequest(f"SELECT * {sql}", max_rows=limits.num_rows, timeout_s=limits.timeout_s)


Part = Callable[[Client, Limits, Taken], Awaitable[None]]
#: Each adds to what is taken of a target, and says in `left_out` what it could not get.
PARTS: tuple[Part, ...] = (_stacks, _tables)
TABLES: tuple[Part, ...] = (_tables,)


def take(limits: Limits, parts: Sequence[Part] = PARTS) -> Callable[[Client], Awaitable[Taken]]:
    """Return the question for everything that a report, or these parts of one, has of one target."""

    async def ask(client: Client) -> Taken:
        taken = Taken()
        for part in parts:
            await part(client, limits, taken)
        return taken

    return ask
