"""Columns and rows, whatever command they come from, and the text formats of `--format` that programs read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["BINARY_FORMATS", "FORMATS", "LINE_FORMATS", "Sheet", "envelope_lines"]


@dataclass(frozen=True)
class Sheet:
    """`types` are SQL types; a value is what JSON can hold (None is NULL, non-finite floats are text).

    On a terminal the texts of the column `prose` are wrapped, and all others are shown whole; without it, wide texts
    are cut."""

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


def json_lines(sheet: Sheet) -> Iterator[str]:
    """One JSON array of objects, an object a line."""
    yield "["
    before = ""
    for record in sheet.records():
        if before:
            yield before + ","
        before = json.dumps(record, ensure_ascii=False)
    if before:
        yield before
    yield "]"


def envelope_lines(sheet: Sheet, fields: Mapping[str, object]) -> Iterator[str]:
    """One JSON object: the rows, one a line, the columns, and `fields`, one a line."""
    columns = [{"name": name, "type": type_} for name, type_ in zip(sheet.columns, sheet.types, strict=True)]
    first, *rows = json_lines(sheet)
    yield '{"rows": ' + first
    yield from rows[:-1]
    rest = {"columns": columns, **fields}
    yield (
        "],"
        + ",\n".join(f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in rest.items())
        + "}"
    )


def jsonl_lines(sheet: Sheet) -> Iterator[str]:
    """One JSON object a line."""
    for record in sheet.records():
        yield json.dumps(record, ensure_ascii=False)


def csv_lines(sheet: Sheet) -> Iterator[str]:
    """Comma-separated with a heading; NULL is an empty field, an empty text is \"\" (csv.writer mixes them up)."""
    yield ",".join(_field(name) for name in sheet.columns)
    for row in sheet.rows:
        yield ",".join(_field(value) for value in row)


def _field(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)
    if not text or any(character in text for character in ',"\r\n') or text != text.strip():
        return '"' + text.replace('"', '""') + '"'
    return text


LINE_FORMATS: dict[str, Callable[[Sheet], Iterator[str]]] = {
    "json": json_lines,
    "jsonl": jsonl_lines,
    "csv": csv_lines,
}
#: Only for query results, which the server can send as Arrow.
BINARY_FORMATS = ("arrow", "parquet")
#: `envelope` is the object that `json` gives of several endpoints, of a single one too.
FORMATS = ("table", *LINE_FORMATS, "envelope")
