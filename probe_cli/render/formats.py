"""The text formats of `--format`, each a function from a sheet to lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from .sheet import Sheet

__all__ = ["BINARY_FORMATS", "FORMATS", "LINE_FORMATS"]


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
FORMATS = ("table", *LINE_FORMATS)
