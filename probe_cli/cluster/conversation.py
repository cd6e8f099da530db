"""Several questions to many endpoints, one after the other, over connections that stay open.

Runs in the CLI on its event loop. Whoever does not answer a question is not asked the next one: it costs its own
answer only, and its reason is kept.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from probe_agent.errors import NoAnswer, ProbeError
from probe_cli.client import Client, open_client
from probe_cli.endpoint import Endpoint, LocalProcess

from .ask import Answers, ensure_attached

__all__ = ["Conversation", "Member", "open_conversation"]

T = TypeVar("T")

#: Answers under way at once: more than a machine of a few cores can read, few enough for its memory.
MAX_AT_ONCE = 128


@dataclass(eq=False)
class Member:
    """One endpoint of a conversation, and why it has left it, if it has."""

    endpoint: Endpoint
    client: Client
    error: ProbeError | None = None


class Conversation:
    """The members, and what they are asked."""

    def __init__(self, members: Sequence[Member], timeout_s: float, total_s: float) -> None:
        self.members = tuple(members)
        self._timeout_s = timeout_s
        self._ends = time.monotonic() + total_s
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)

    @property
    def present(self) -> list[Member]:
        """Those that have answered all so far."""
        return [member for member in self.members if member.error is None]

    async def ask(
        self,
        question: Callable[[Member], Awaitable[T]],
        members: Sequence[Member] | None = None,
        timeout_s: float | None = None,
    ) -> list[tuple[Member, T]]:
        """The answers of `members` (of all that are present, without); who gives none leaves the conversation."""
        asked = self.present if members is None else members
        wait_s = timeout_s or self._timeout_s
        answers = await asyncio.gather(*(self._ask_one(member, question, wait_s) for member in asked))
        return [(member, answer[0]) for member, answer in zip(asked, answers, strict=True) if answer is not None]

    async def first(
        self, question: Callable[[Member], Awaitable[T]], members: Sequence[Member]
    ) -> tuple[Member, T] | None:
        """Who of `members` is the first to answer, and what; who fails before that leaves the conversation, and the
        others are let off. None when nobody answers."""
        asking = {asyncio.create_task(self._ask_one(member, question, self._timeout_s)): member for member in members}
        waiting = set(asking)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if (answer := task.result()) is not None:
                        return asking[task], answer[0]
            return None
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _ask_one(
        self, member: Member, question: Callable[[Member], Awaitable[T]], wait_s: float
    ) -> tuple[T] | None:
        async with self._slots:
            left_s = min(wait_s, self._ends - time.monotonic())
            try:
                return (await asyncio.wait_for(question(member), max(0.0, left_s)),)
            except (TimeoutError, asyncio.TimeoutError):  # two classes until Python 3.11
                member.error = NoAnswer(
                    f"{member.endpoint} did not answer within {left_s:.3g} s",
                    "wait longer with --host-timeout SECONDS and --timeout SECONDS",
                )
            except ProbeError as error:
                member.error = error
            return None

    def answers(self, value: T) -> Answers[T]:
        """Who has stayed (with `value`, the answer of all of them) and who has not, as other questions give it."""
        return Answers(
            tuple((member.endpoint, value) for member in self.members if member.error is None),
            tuple((member.endpoint, member.error) for member in self.members if member.error is not None),
        )


@asynccontextmanager
async def open_conversation(
    endpoints: Sequence[Endpoint], *, timeout_s: float, total_s: float, inject: bool, remark: Callable[[str], None]
) -> AsyncIterator[Conversation]:
    """A conversation with `endpoints`: each question waits `timeout_s` for each of them, all together end after
    `total_s`. A bare PID without our agent gets it first when `inject` allows it."""
    _allow_files(len(endpoints))
    async with AsyncExitStack() as open_clients:
        members = []
        for endpoint in endpoints:
            members.append(Member(endpoint, await open_clients.enter_async_context(open_client(endpoint))))
        conversation = Conversation(members, timeout_s, total_s)
        local = [member for member in members if isinstance(member.endpoint, LocalProcess)]

        async def attach(member: Member) -> None:
            assert isinstance(member.endpoint, LocalProcess)
            await ensure_attached(member.client, member.endpoint.pid, inject, remark, False)

        await conversation.ask(attach, local, total_s)
        yield conversation


def _allow_files(num_connections: int) -> None:
    """A connection is an open file, and 1,024 of them is what a shell usually allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_connections + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
