"""Several requests to one host server that travel as one, and how their answers come back."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ._documented import DOCUMENTED

__all__ = ["FRAME", "BatchItem", "BatchRequest"]

#: In front of each piece of the answer: the number of its request, from 0, and the length of the piece. The first piece
#: of each is its head, a JSON object with `status` and `headers`; an empty one is its end.
FRAME = struct.Struct("<II")


@dataclass(frozen=True)
class BatchItem:
    """One of several requests."""

    __pydantic_config__ = DOCUMENTED

    path: str
    """path and query string, such as /v1/query?rank=3"""
    body: int | None = None
    """number of its body in `bodies`, from 0; without one it is a GET, otherwise a POST"""
    accept: str = "application/json"
    """media type of the answer"""


@dataclass(frozen=True)
class BatchRequest:
    """Several requests of one caller. Many targets are asked the same, so a body is sent once."""

    __pydantic_config__ = DOCUMENTED

    items: tuple[BatchItem, ...]
    """the requests"""
    bodies: tuple[str, ...] = ()
    """JSON texts that they send"""
