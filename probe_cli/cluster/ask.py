"""Puts one question to every endpoint at once.

Runs in the CLI on its event loop. "No rows" and "no answer" never look alike: who did not answer is kept
beside who did, with the reason.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from probe_agent.errors import AttachDelayed, AttachRefused, NoAnswer, ProbeError
from probe_agent.wire import TargetList
from probe_cli.client import Client, open_client
from probe_cli.client.attach import attach
from probe_cli.endpoint import Endpoint, LocalProcess, Ranks

__all__ = ["Answers", "allow_descriptors", "ask"]

T = TypeVar("T")

#: So many of those who did not answer are named in one line.
MAX_NAMED = 32


@dataclass(frozen=True)
class Answers(Generic[T]):
    """What came back, in the order of the endpoints."""

    answered: tuple[tuple[Endpoint, T], ...]
    failed: tuple[tuple[Endpoint | Ranks, ProbeError], ...]

    @property
    def num_asked(self) -> int:
        return len(self.answered) + len(self.failed)

    @property
    def exit_code(self) -> int:
        """0 fine, 1 an answer is an error, 3 some did not answer, 4 nobody did."""
        silent = [error for _, error in self.failed if isinstance(error, NoAnswer | AttachRefused)]
        if silent:
            return 4 if len(silent) == self.num_asked else 3
        return max((error.exit_code for _, error in self.failed), default=0)

    def summary(self) -> str:
        """One line that says who did not answer, empty when everybody did."""
        if not self.failed:
            return ""
        names = ", ".join(str(endpoint) for endpoint, _ in self.failed[:MAX_NAMED])
        names += f" and {len(self.failed) - MAX_NAMED} more" if len(self.failed) > MAX_NAMED else ""
        return f"{len(self.answered)} of {self.num_asked} answered; not: {names}"


async def ask(
    endpoints: Sequence[Endpoint],
    question: Callable[[Client], Awaitable[T]],
    *,
    timeout_s: float | None,
    inject: bool,
    remark: Callable[[str], None],
    needs_agent: bool = True,
) -> Answers[T]:
    """Everybody's answer to `question`, or why there is none; waits `timeout_s` for each.

    A bare PID without our agent gets it first when `inject` allows it, and `remark` is told so. A question that does
    not need the agent is put also when it may not come, or comes later.
    """
    allow_descriptors(len(endpoints))
    outcomes = await asyncio.gather(
        *(_ask_one(endpoint, question, timeout_s, inject, remark, needs_agent) for endpoint in endpoints)
    )
    return Answers(
        tuple((endpoint, answer) for endpoint, answer, error in outcomes if error is None),  # type: ignore[misc]
        tuple((endpoint, error) for endpoint, _, error in outcomes if error is not None),
    )


async def _ask_one(
    endpoint: Endpoint,
    question: Callable[[Client], Awaitable[T]],
    timeout_s: float | None,
    inject: bool,
    remark: Callable[[str], None],
    needs_agent: bool,
) -> tuple[Endpoint, T | None, ProbeError | None]:
    try:
        async with open_client(endpoint) as client:
            if isinstance(endpoint, LocalProcess):
                await ensure_attached(client, endpoint.pid, inject, remark, needs_agent)
            return endpoint, await asyncio.wait_for(question(client), timeout_s), None
    except (TimeoutError, asyncio.TimeoutError):  # two classes until Python 3.11
        return (
            endpoint,
            None,
            NoAnswer(f"{endpoint} did not answer within {timeout_s:g} s", "wait longer with --timeout SECONDS"),
        )
    except ProbeError as error:
        return endpoint, None, error


async def ensure_attached(
    client: Client, pid: int, inject: bool, remark: Callable[[str], None], needs_agent: bool
) -> None:
    """Put the agent into `pid` when it has none. Raises AttachRefused when it cannot, or when it is needed and may
    not or comes later."""
    listed = await client.get(TargetList, "/v1/targets")
    known = [target for target in listed.targets if target.pid == pid]
    # A dead target is asked for what it left, unless another process has its number by now.
    if any(target.alive or target.state == "zombie" for target in known) or (known and not _exists(pid)):
        return
    if not inject and not needs_agent:
        return
    if not inject:
        raise AttachRefused(
            f"process {pid} has no agent, and --no-inject forbids to attach one", f"attach it first: probe {pid} inject"
        )
    started = time.perf_counter()
    try:
        attached = await attach(pid)
    except AttachDelayed as delay:
        if needs_agent:
            raise
        remark(delay.message)
        return
    if not attached.already:
        remark(f"attached to {pid} in {(time.perf_counter() - started) * 1e3:.0f} ms ({attached.how})")


def allow_descriptors(num_endpoints: int) -> None:
    """All are asked at once, so as many connections are open; the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_endpoints + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        enough = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough), hard))


def _exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
