"""Declaration of a recorded table: a name, a sentence, and columns with a type, a unit and a meaning.

A table is one subclass of `Table` in the file that records it. The ring file, the SQL views, `probe tables` and the
docs are all generated from that declaration.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

__all__ = ["COORDINATES", "KINDS", "MIB", "NULL_FLOAT", "NULL_INT", "Column", "Table", "row_struct"]

#: kind -> (struct code, SQL type). Text is stored as an index into the ring's own string list.
KINDS: dict[str, tuple[str, str]] = {
    "float": ("d", "DOUBLE"),
    "int": ("q", "BIGINT"),
    "int or null": ("q", "BIGINT"),
    "bool": ("?", "BOOLEAN"),
    "text": ("I", "VARCHAR"),
    "time": ("q", "TIMESTAMP"),  # microseconds since 1970 in UTC
}


#: Bytes in the unit of every column of memory.
MIB = 1024.0 * 1024.0
#: NULL in a float column. Not NaN, which a loss may well be, and not an infinity: the lowest finite double.
NULL_FLOAT = -1.7976931348623157e308
#: NULL in a column of kind "int or null".
NULL_INT = -(2**63)


class Column(NamedTuple):
    """One column: `kind` is a key of `KINDS`; `unit` is empty where there is none."""

    name: str
    kind: str
    unit: str
    meaning: str

    @property
    def sql_type(self) -> str:
        return KINDS[self.kind][1]


#: First columns of every table. They are the same for all rows of a target, so the ring stores them once.
COORDINATES: tuple[Column, ...] = (
    Column("host", "text", "", "name of the host the target runs on"),
    Column("pid", "int", "", "process id of the target on the host"),
    Column("rank", "int", "", "rank of the target in its job; 0 if it has none, NULL until known"),
    Column("world_size", "int", "", "number of ranks in the job; 1 if it is not distributed, NULL until known"),
    Column("job", "text", "", "name of the job, the same on all its ranks and hosts; NULL until known"),
)


class Table:
    """Base of every recorded table.

    A row is a tuple with one value for each of `columns`, in order. `None` is NULL in a float or text
    column and in one of kind "int or null"; int, bool and time columns are never NULL.
    """

    name: ClassVar[str]  #: as users type it, schema included: "python.steps"
    doc: ClassVar[str]  #: one sentence
    columns: ClassVar[tuple[Column, ...]]
    capacity: ClassVar[int] = 65_536  #: rows kept
    filled_by: ClassVar[str] = ""  #: the command that fills it, if the recorder does not do so by itself

    @classmethod
    def row_struct(cls) -> struct.Struct:
        """Return the layout of one row in the ring."""
        return row_struct(cls.columns)


def row_struct(columns: Sequence[Column]) -> struct.Struct:
    """Return the layout of a row: little-endian, each value aligned to its size, each row to 8 bytes.

    DuckDB reads aligned values in place; it copies unaligned ones, 13 ms per column of 1,000,000 rows.
    """
    codes, size = "", 0
    for code in (KINDS[column.kind][0] for column in columns):
        value_size = struct.calcsize("<" + code)
        gap = -size % value_size
        codes += "x" * gap + code
        size += gap + value_size
    return struct.Struct("<" + codes + "x" * (-size % 8))
