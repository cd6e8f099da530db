"""The layout of a ring file, shared by the writer in the target and the readers beside it.

    offset 0      magic, version, offsets                     fixed when the file is made
    offset 64     reserved, head, strings_used                counters, 8 bytes each, written by the target
    offset 4096   JSON: table, columns, coordinates, capacity fixed when the file is made
    strings_at    text: u32 length + UTF-8, one after another append-only; string number 0 is NULL
    rows_at       capacity rows of row_size bytes             row n lies in slot n % capacity

A writer raises `reserved` to n before it touches the slots of the rows below n, and `head` to n when they are
complete. A reader takes head, copies, then takes reserved: of the copied rows, those from `reserved - capacity` up to
head are whole. Neither side ever waits for the other.
"""

from __future__ import annotations

import struct

__all__ = ["COUNTERS", "COUNTERS_AT", "FIXED", "MAGIC", "SCHEMA_AT", "STRING_LENGTH", "VERSION"]

MAGIC = b"PROBRING"
VERSION = 1

#: magic, version, row_size, capacity, schema_size, strings_at, strings_size, rows_at
FIXED = struct.Struct("<8sIIQIQQQ")
COUNTERS_AT = 64
#: reserved, head, strings_used (bytes of the string area that are complete)
COUNTERS = struct.Struct("<QQQ")
SCHEMA_AT = 4096
STRING_LENGTH = struct.Struct("<I")
