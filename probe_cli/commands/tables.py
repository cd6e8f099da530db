"""`probe … tables`: the tables that can be queried, made from their own declarations."""

from __future__ import annotations

import sys

import click

from probe_agent.errors import BadRequest
from probe_agent.wire import TableInfo, TableList, suggest_table
from probe_cli.client import Client
from probe_cli.messages import remark
from probe_cli.options import format_option, timeout_option
from probe_cli.render import Sheet
from probe_cli.render.show import is_brief, show_answers
from probe_cli.render.terminal import columns_of, wrap
from probe_cli.session import Session

__all__ = ["command"]

#: Columns that a terminal has no room for beside whole names.
_ON_REQUEST = ("kind", "lost", "first", "last")


@click.command("tables")
@click.argument("name", required=False)
@click.option("--columns", is_flag=True, help="The columns of every table, with type, unit and meaning.")
@click.option("--long", "is_long", is_flag=True, help="On a terminal too: kind, rows lost, oldest, newest, all text.")
@format_option()
@timeout_option(10.0, "How long to wait for the answer.")
@click.pass_obj
def command(session: Session, name: str | None, columns: bool, is_long: bool, format_: str, timeout_s: float) -> int:
    """List the tables that can be queried: how many rows, over how many seconds, and a description. With --long, in a
    pipe and in other formats also how many rows newer ones have overwritten, and the times of the oldest and newest.

    With NAME, or with --columns, show their columns. Names are never cut.
    """

    async def question(client: Client) -> TableList:
        return await client.get(TableList, "/v1/tables")

    answers = session.ask(question, timeout_s=timeout_s, of_many=True)
    brief = is_brief(format_)
    sheets = []
    for endpoint, listed in answers.answered:
        tables = listed.tables if name is None else (_named(listed.tables, name),)
        sheet = _columns(tables) if columns or name is not None else _overview(tables, brief and not is_long)
        if brief:
            sheet = sheet.without(*([] if is_long else _ON_REQUEST), *(["table"] if name is not None else []))
            if name is not None:
                described = f"{tables[0].name}: {tables[0].doc}"
                remark("\n".join(wrap(described, columns_of(sys.stdout) or len(described))))
        sheets.append((endpoint, sheet))
    notes = [(endpoint, note) for endpoint, listed in answers.answered for note in listed.notes]
    show_answers(answers, sheets, format_, notes)
    return answers.exit_code


def _named(tables: tuple[TableInfo, ...], name: str) -> TableInfo:
    for table in tables:
        if name in (table.name, table.name.rpartition(".")[2]):
            return table
    near, having = suggest_table(name, {table.name: [column.name for column in table.columns] for table in tables})
    hint = "list the tables with: probe … tables"
    if near:
        hint = f"use {' or '.join(near)}"
    elif having:
        hint = f"query {' or '.join(having)}, with the column {name}"
    raise BadRequest(f"there is no table {name!r}", hint)


def _overview(tables: tuple[TableInfo, ...], is_short: bool) -> Sheet:
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
    rows = [
        (table.name, column.name, column.type, column.unit, column.meaning)
        for table in tables
        for column in table.columns
    ]
    return Sheet(("table", "column", "type", "unit", "meaning"), ("VARCHAR",) * 5, rows, prose="meaning")
