"""Columns and rows, whatever command they come from; every output format takes one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Sheet"]


@dataclass(frozen=True)
class Sheet:
    """`types` are SQL types; a value is what JSON can hold (None is NULL, non-finite floats are text).

    On a terminal the texts of the column `prose` are wrapped, and those of all others are shown whole."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    prose: str | None = None

    def without(self, *names: str) -> Sheet:
        """The same without some columns."""
        kept = [at for at, column in enumerate(self.columns) if column not in names]
        rows = [[row[at] for at in kept] for row in self.rows]
        return Sheet(tuple(self.columns[at] for at in kept), tuple(self.types[at] for at in kept), rows, self.prose)

    def records(self) -> Iterator[dict[str, object]]:
        """The rows by column name; a name that comes twice gets a number behind it."""
        names = _unique(self.columns)
        return (dict(zip(names, row, strict=True)) for row in self.rows)


def _unique(columns: tuple[str, ...]) -> list[str]:
    names: list[str] = []
    for column in columns:
        name, number = column, 1
        while name in names:
            name, number = f"{column}_{number}", number + 1
        names.append(name)
    return names
