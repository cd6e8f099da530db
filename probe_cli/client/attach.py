"""The one door to `probe_agent.inject`: its ctypes and ELF code is loaded only when something is attached."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe_agent.inject import Attached, Check

__all__ = ["attach", "examine"]


async def attach(pid: int, *, timeout_s: float = 10.0, risk_seccomp: bool = False) -> Attached:
    """Put the recorder into process `pid`; a second time is a no-op. Raises AttachRefused, also where
    a seccomp filter may kill the process, unless that is risked."""
    from probe_agent import inject

    # One worker thread does all of it: ptrace answers only the thread that began.
    return await asyncio.to_thread(inject.attach, pid, timeout_s=timeout_s, risk_seccomp=risk_seccomp)


def examine(pid: int) -> list[Check]:
    """What would stop an attach to `pid`, each with its remedy. Touches nothing."""
    from probe_agent import inject

    return inject.examine(pid)
