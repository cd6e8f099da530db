"""What time it is on a host."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED

__all__ = ["HostClock"]


@dataclass(frozen=True)
class HostClock:
    """When the question came in and when the answer went out, in seconds since 1970 by the host's clock."""

    __pydantic_config__ = DOCUMENTED

    host: str
    """name of the host"""
    received: float
    """when the question came in"""
    answered: float
    """when the answer was made"""
