"""The one door to `probe_agent.inject`: its ctypes and ELF code is loaded only when something is attached."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe_agent.inject import Attached, Check

__all__ = ["attach", "examine"]


async def attach(pid: int, *, timeout_s: float = 10.0, risk_seccomp: bool = False) -> Attached:
    """Put the recorder into process `pid`; a second time is a no-op. Raises AttachRefused, also if a seccomp filter
    may kill the process, unless that is risked."""
    # One worker thread does all of it: ptrace answers only the thread that began.
    attached: Attached = await asyncio.to_thread(_inject().attach, pid, timeout_s=timeout_s, risk_seccomp=risk_seccomp)
    return attached


def examine(pid: int) -> list[Check]:
    """Return what would prevent an attach to `pid`, each with its remedy. Touches nothing."""
    checks: list[Check] = _inject().examine(pid)
    return checks


def _inject() -> ModuleType:
    from probe_agent import inject  # a door: 40 ms of ctypes and ELF code, which only an attach needs

    return inject
