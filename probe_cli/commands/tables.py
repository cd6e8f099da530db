"""`probe … tables`: what there is to ask, made from the tables' own declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from probe_cli.options import format_option, timeout_option
from probe_cli.session import Session, remark

if TYPE_CHECKING:
    from probe_agent.wire import TableInfo
    from probe_cli.render import Sheet

__all__ = ["command"]

#: Columns that a terminal has no room for beside whole names.
_ON_REQUEST = ("kind", "lost", "first", "last")


@click.command("tables", short_help="List the tables and their columns.")
@click.argument("name", required=False)
@click.option("--columns", is_flag=True, help="The columns of every table, with type, unit and meaning.")
@click.option("--long", "is_long", is_flag=True, help="On a terminal too: kind, rows lost, oldest, newest, all text.")
@format_option()
@timeout_option(10.0, "How long to wait for the answer.")
@click.pass_obj
def command(session: Session, name: str | None, columns: bool, is_long: bool, format_: str, timeout_s: float) -> int:
    """List the tables that can be asked: how many rows, over how many seconds, and what a row is. With --long, in a
    pipe and in other formats also how many rows newer ones have overwritten, and the times of the oldest and newest.

    With NAME, or with --columns, show their columns. Names are never cut.
    """
    from probe_agent.wire import TableList
    from probe_cli.client import Client
    from probe_cli.render.show import is_brief, show_each

    async def question(client: Client) -> TableList:
        return await client.get(TableList, "/v1/tables")

    answers = session.ask(question, timeout_s=timeout_s, of_many=True)
    sheets = []
    for endpoint, listed in answers.answered:
        tables = listed.tables if name is None else (_named(listed.tables, name),)
        brief = is_brief(format_)
        sheet = _columns(tables) if columns or name is not None else _overview(tables, brief and not is_long)
        if brief:
            sheet = sheet.without(*([] if is_long else _ON_REQUEST), *(["table"] if name is not None else []))
            if name is not None:
                remark(f"{tables[0].name}: {tables[0].doc}")
        sheets.append((endpoint, sheet))
    show_each(sheets, format_, remark)
    for endpoint, listed in answers.answered:
        for note in listed.notes:
            remark(note if answers.num_asked == 1 else f"{endpoint}: {note}")
    return answers.exit_code


def _named(tables: tuple[TableInfo, ...], name: str) -> TableInfo:
    from probe_agent.errors import BadRequest
    from probe_agent.wire import suggest_table

    for table in tables:
        if name in (table.name, table.name.rpartition(".")[2]):
            return table
    near, having = suggest_table(name, {table.name: [column.name for column in table.columns] for table in tables})
    hint = "list them with: probe … tables"
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif having:
        hint = f"{name} is a column of: {', '.join(having)}"
    raise BadRequest(f"there is no table {name!r}", hint)


def _overview(tables: tuple[TableInfo, ...], is_short: bool) -> Sheet:
    from probe_cli.render import Sheet

    def description(doc: str) -> str:
        first, more, _ = doc.partition(". ")
        return f"{first}." if is_short and more else doc

    rows = [
        (table.name, table.kind, table.rows, table.covers, table.lost, table.first, table.last, description(table.doc))
        for table in tables
    ]
    return Sheet(
        ("table", "kind", "rows", "covers", "lost", "first", "last", "description"),
        ("VARCHAR", "VARCHAR", "BIGINT", "DOUBLE", "BIGINT", "VARCHAR", "VARCHAR", "VARCHAR"),
        rows,
        prose="description",
    )


def _columns(tables: tuple[TableInfo, ...]) -> Sheet:
    from probe_cli.render import Sheet

    rows = [
        (table.name, column.name, column.type, column.unit, column.meaning)
        for table in tables
        for column in table.columns
    ]
    return Sheet(("table", "column", "type", "unit", "meaning"), ("VARCHAR",) * 5, rows, prose="meaning")
