"""Conversion of decoded JSON into wire classes.

Runs in the CLI on every answer. A field that is not known is skipped: a newer server may say more.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["decode"]

T = TypeVar("T")


def decode(kind: type[T], data: object) -> T:
    """Return `data`, decoded JSON, as a `kind`. Raises ValueError if it does not fit."""
    if not isinstance(data, dict):
        raise ValueError(f"{kind.__name__}: an object was expected, not {type(data).__name__}")
    values = {}
    hashable: Any = kind  # every class is; mypy does not see it in a type variable
    for name, hint, required in _shape(hashable):
        if name in data:
            values[name] = _value(hint, data[name])
        elif required:
            raise ValueError(f"{kind.__name__}: the field {name!r} is missing")
    return kind(**values)


@cache
def _shape(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    hints = get_type_hints(kind)
    return tuple(
        (field.name, hints[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in fields(kind)
    )


def _value(hint: Any, value: Any) -> Any:  # Any: a type hint, and whatever JSON holds
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and type(None) in args:
            return None
        return _value(next(arg for arg in args if arg is not type(None)), value)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"a list was expected, not {type(value).__name__}")
        return tuple(_value(args[0], item) for item in value)
    if is_dataclass(hint) and isinstance(hint, type):
        return decode(hint, value)
    return value
