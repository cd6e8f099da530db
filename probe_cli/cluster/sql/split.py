"""Splitting a SELECT over one table into what each host computes and what merges the parts.

Two shapes are split: groups of aggregates (groups.py) and the first rows (rows.py). Every split is checked before it is
used: the merged SELECT must have the names and types of the original.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from probe_agent.sql.merging import MergedDatabase, RefusedStatement

from .functions import Functions
from .groups import is_grouped, split_groups
from .rows import split_rows
from .select import Unsplittable, read_select
from .tree import Tree

__all__ = ["Part", "Splitter", "Unsplittable"]


@dataclass(frozen=True)
class Part:
    """What hosts are asked of one table: a SELECT, the columns it reads and sends, and the table they go into."""

    table: str
    select: Tree
    uses: frozenset[str]
    into: str
    columns: Sequence[tuple[str, str]]


class Splitter:
    """Splits over the tables of `database` that hosts have: `tables`, with their columns and types."""

    def __init__(self, database: MergedDatabase, tables: Mapping[str, Mapping[str, str]]) -> None:
        self.functions = Functions.of(database)
        self._database = database
        self._tables = tables

    def split(self, node: Tree, into: str, max_rows: int | None = None) -> tuple[Part, Tree]:
        """Return what to ask of the hosts, and the SELECT over the table `into`, which is created, that takes the place
        of `node`. With `max_rows`, more rows than that are not needed. Raises Unsplittable."""
        database = self._database
        select = read_select(node, self._tables, self.functions, database)
        try:
            described = database.described(database.text_of(node))
            titled = zip(select.node["select_list"], described, strict=True)
            items = [{**item, "alias": title} for item, (title, _) in titled]
            select = replace(select, node={**select.node, "select_list": items})
            grouped = is_grouped(select)
            host, merged = split_groups(select, database) if grouped else split_rows(select, max_rows, database)
            columns = database.described(database.text_of(host))
            database.create(into, dict(columns))
            merged = {**merged, "from_table": database.parsed(f"SELECT * FROM {into}")["from_table"]}
            if database.described(database.text_of(merged)) != described:
                raise Unsplittable("its parts have other types")
        except RefusedStatement as refusal:
            raise Unsplittable(str(refusal)) from None
        return Part(select.table, host, select.uses(host), into, columns), merged
