"""The answer to an SQL statement in a notebook: rows, a DataFrame, or Arrow."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import duckdb

from probe_agent.errors import BadRequest
from probe_cli.render.columnar import ArrowStream
from probe_cli.render.sheet import Sheet
from probe_cli.render.table import table

from .views import notes_html

__all__ = ["Answer"]

#: Rows that are shown of an answer; all of them are in it.
SHOWN, SHOWN_AS_TEXT = 50, 20
LIBRARIES = ("pandas", "polars")


@dataclass(frozen=True)
class Answer:
    """Rows, and what is to be known about them. `unanswered` says which targets did not answer, and why.

    Anything that reads Arrow takes it as it is: `polars.DataFrame(answer)`, `pyarrow.table(answer)`.
    """

    stream: bytes
    notes: Sequence[str] = ()
    unanswered: Sequence[str] = ()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return ArrowStream(self.stream).__arrow_c_stream__(requested_schema)

    def df(self, library: str | None = None) -> Any:  # a pandas or Polars DataFrame
        """The rows as a DataFrame, of pandas or Polars: of the one named, the one that is loaded, or the one that is
        installed, pandas first."""
        name = library or _library()
        if name not in LIBRARIES:
            raise BadRequest(f"{name} has no DataFrame that Probe can make", "use pandas or polars")
        if find_spec(name) is None:
            raise BadRequest(f"a DataFrame of {name} needs {name}, which is not installed", f"pip install {name}")
        if name == "polars":
            return import_module("polars").DataFrame(self)
        with duckdb.connect() as database:
            return database.from_arrow(ArrowStream(self.stream)).df()

    @property
    def columns(self) -> tuple[str, ...]:
        return self._sheet.columns

    @property
    def rows(self) -> Sequence[Sequence[Any]]:
        """The values as Python has them; timestamps are UTC."""
        return self._sheet.rows

    @cached_property
    def _sheet(self) -> Sheet:
        with duckdb.connect() as database:
            found = database.from_arrow(ArrowStream(self.stream))
            return Sheet(tuple(found.columns), tuple(map(str, found.types)), found.fetchall())

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return iter(self.rows)

    def __repr__(self) -> str:
        first = Sheet(self._sheet.columns, self._sheet.types, self.rows[:SHOWN_AS_TEXT])
        lines, _ = table(first)
        more = [f"… {len(self) - SHOWN_AS_TEXT} more rows"] if len(self) > SHOWN_AS_TEXT else []
        return "\n".join([*lines, *more, *self.notes, *self.unanswered])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_text(value))}</td>" for value in row) + "</tr>" for row in self.rows[:SHOWN]
        )
        counted = f"{len(self):,} rows" + (f", the first {SHOWN} of them shown" if len(self) > SHOWN else "")
        shown = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{counted}</p>"
        return shown + notes_html(self.notes, self.unanswered)


def _library() -> str:
    loaded = [name for name in LIBRARIES if name in sys.modules]
    installed = [name for name in LIBRARIES if find_spec(name) is not None]
    for name in (*loaded, *installed):
        return name
    raise BadRequest(
        "a DataFrame needs pandas or Polars, and neither is installed",
        "pip install polars; or take .rows, or the answer itself where Arrow is read",
    )


def _text(value: object) -> str:
    if value is None:
        return "NULL"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
