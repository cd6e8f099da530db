"""The fan-out: one question to many endpoints at once, or several one after the other over open connections.

Runs in the CLI on its event loop. "No rows" and "no answer" never look alike: every endpoint that gave no answer is
kept in `unanswered`, beside the answers, with the reason. It costs its own answer only, and is not asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from probe_agent.errors import AttachRefused, NoAnswer, ProbeError
from probe_agent.wire import TargetList
from probe_cli.client import Client, open_clients, server_of
from probe_cli.client.attach import attach
from probe_cli.endpoint import Endpoint, LocalProcess, MissingRanks
from probe_cli.progress import progress

__all__ = ["Answers", "Conversation", "Member", "allow_descriptors", "ask", "open_conversation"]

T = TypeVar("T")

#: One line names at most this many endpoints that did not answer.
MAX_NAMED = 32
#: Answers under way at once in a conversation: more than a few cores can read, few enough for their memory.
MAX_AT_ONCE = 128


@dataclass(frozen=True)
class Answers(Generic[T]):
    """What came back, in the order of the endpoints, and who did not answer, with the reason."""

    answered: tuple[tuple[Endpoint, T], ...]
    unanswered: tuple[tuple[Endpoint | MissingRanks, ProbeError], ...]

    @property
    def num_asked(self) -> int:
        return len(self.answered) + len(self.unanswered)

    @property
    def exit_code(self) -> int:
        """0 fine, 1 an answer is an error, 3 some did not answer, 4 none did."""
        silent = [error for _, error in self.unanswered if isinstance(error, NoAnswer | AttachRefused)]
        if silent:
            return 4 if len(silent) == self.num_asked else 3
        return max((error.exit_code for _, error in self.unanswered), default=0)

    def summary(self) -> str:
        """One line that names who did not answer; empty when all did."""
        if not self.unanswered:
            return ""
        names = ", ".join(str(endpoint) for endpoint, _ in self.unanswered[:MAX_NAMED])
        names += f" and {len(self.unanswered) - MAX_NAMED} more" if len(self.unanswered) > MAX_NAMED else ""
        return f"{len(self.answered)} of {self.num_asked} answered; not: {names}"


@dataclass(eq=False)
class Member:
    """One endpoint of a conversation, and why it has left it, if it has."""

    endpoint: Endpoint
    client: Client
    error: ProbeError | None = None


class Conversation:
    """The endpoints, with their connections, and what they are asked."""

    def __init__(
        self,
        members: Sequence[Member],
        refused: Sequence[tuple[Endpoint, ProbeError]],
        timeout_s: float | None,
        *,
        total_s: float | None = None,
        max_at_once: int | None = None,
        hint: str = "wait longer with --timeout SECONDS",
    ) -> None:
        self.members = tuple(members)
        #: Endpoints to which no connection could be prepared.
        self._refused = tuple(refused)
        self._timeout_s = timeout_s
        self._total_s = total_s
        self._ends = None if total_s is None else time.monotonic() + total_s
        self._slots = contextlib.nullcontext() if max_at_once is None else asyncio.Semaphore(max_at_once)
        self._hint = hint

    @property
    def present(self) -> list[Member]:
        """Those that have answered all questions so far."""
        return [member for member in self.members if member.error is None]

    async def ask(
        self,
        question: Callable[[Member], Awaitable[T]],
        members: Sequence[Member] | None = None,
        timeout_s: float | None = None,
    ) -> list[tuple[Member, T]]:
        """The answers of `members` (without: of all that are present); who gives none leaves the conversation."""
        asked = self.present if members is None else members
        wait_s = timeout_s or self._timeout_s
        answers = await asyncio.gather(*(self._ask_one(member, question, wait_s) for member in asked))
        return [(member, answer[0]) for member, answer in zip(asked, answers, strict=True) if answer is not None]

    async def first(
        self, question: Callable[[Member], Awaitable[T]], members: Sequence[Member]
    ) -> tuple[Member, T] | None:
        """The first of `members` to answer, and its answer. Who fails before that leaves the conversation; the others
        are let off. None when none answers."""
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
        self, member: Member, question: Callable[[Member], Awaitable[T]], wait_s: float | None
    ) -> tuple[T] | None:
        async with self._slots:
            left_s = wait_s
            if self._ends is not None:
                left_s = max(0.0, min(self._ends - time.monotonic(), *([] if wait_s is None else [wait_s])))
            try:
                return (await asyncio.wait_for(question(member), left_s),)
            except (TimeoutError, asyncio.TimeoutError):  # two classes until Python 3.11
                # What is left of the time for all questions says nothing to the user: the whole of it does.
                allowed_s = left_s if left_s == wait_s else self._total_s
                member.error = NoAnswer(f"{member.endpoint} did not answer within {allowed_s:.3g} s", self._hint)
            except ProbeError as error:
                member.error = error
            return None

    def answers(self, value: T) -> Answers[T]:
        """Who has stayed, each with `value`, the answer of all of them, and who has not."""
        return Answers(
            tuple((member.endpoint, value) for member in self.members if member.error is None), self.unanswered
        )

    @property
    def unanswered(self) -> tuple[tuple[Endpoint, ProbeError], ...]:
        """Who has left the conversation, and why."""
        left = tuple((member.endpoint, member.error) for member in self.members if member.error is not None)
        return self._refused + left


async def ask(
    endpoints: Sequence[Endpoint],
    question: Callable[[Client], Awaitable[T]],
    *,
    timeout_s: float | None,
    inject: bool,
    remark: Callable[[str], None],
    needs_agent: bool = True,
    doing: str = "asking",
) -> Answers[T]:
    """The answers of all endpoints to `question`, or why there is none; waits `timeout_s` for each. `doing` is shown
    meanwhile; it is empty for a question that prints its answer as it comes.

    A bare PID without a recorder gets it first when `inject` allows it, and `remark` is told so. A question that does
    not need the recorder is put also when it may not come, or comes later.
    """
    async with AsyncExitStack() as opened:
        members, refused = await _opened(opened, endpoints)
        conversation = Conversation(members, refused, timeout_s)

        async def attach_and_ask(member: Member) -> list[tuple[Member, T]]:
            refusal = None
            try:
                if isinstance(member.endpoint, LocalProcess):
                    refusal = await ensure_attached(member.client, member.endpoint.pid, inject, remark, needs_agent)
            except ProbeError as error:
                member.error = error
                return []
            answer = await conversation.ask(lambda member: question(member.client), [member])
            if refusal is not None and member.error is not None:  # whatever kept us out, keeps the answer back as well
                member.error = NoAnswer(member.error.message, refusal.hint)
            return answer

        async def counted(member: Member) -> list[tuple[Member, T]]:
            answer = await attach_and_ask(member)
            work.advance()
            return answer

        with progress(doing, len(members)) as work:
            answers = await asyncio.gather(*(counted(member) for member in members))
    return Answers(
        tuple((member.endpoint, answer) for each in answers for member, answer in each), conversation.unanswered
    )


@asynccontextmanager
async def open_conversation(
    endpoints: Sequence[Endpoint], *, timeout_s: float, total_s: float, inject: bool, remark: Callable[[str], None]
) -> AsyncIterator[Conversation]:
    """A conversation with `endpoints`: each question waits `timeout_s` for each of them, all together end after
    `total_s`. A bare PID without a recorder gets it first when `inject` allows it."""
    async with AsyncExitStack() as opened:
        members, refused = await _opened(opened, endpoints)
        conversation = Conversation(
            members,
            refused,
            timeout_s,
            total_s=total_s,
            max_at_once=MAX_AT_ONCE,
            hint="wait longer with --host-timeout SECONDS and --timeout SECONDS",
        )

        async def attached(member: Member) -> None:
            assert isinstance(member.endpoint, LocalProcess)
            await ensure_attached(member.client, member.endpoint.pid, inject, remark, False)

        await conversation.ask(attached, [one for one in members if isinstance(one.endpoint, LocalProcess)], total_s)
        with progress(f"asking {len(members)} endpoints"):
            yield conversation


async def _opened(
    open_clients_in: AsyncExitStack, endpoints: Sequence[Endpoint]
) -> tuple[list[Member], list[tuple[Endpoint, ProbeError]]]:
    by_server: dict[Endpoint, list[Endpoint]] = {}
    for endpoint in endpoints:
        by_server.setdefault(server_of(endpoint), []).append(endpoint)
    allow_descriptors(len(by_server))
    opened: dict[Endpoint, Client] = {}
    refused: list[tuple[Endpoint, ProbeError]] = []
    for of_server in by_server.values():
        try:
            clients = await open_clients_in.enter_async_context(open_clients(of_server))
        except ProbeError as error:
            refused += [(endpoint, error) for endpoint in of_server]
        else:
            opened.update(zip(of_server, clients, strict=True))
    return [Member(endpoint, opened[endpoint]) for endpoint in endpoints if endpoint in opened], refused


async def ensure_attached(
    client: Client, pid: int, inject: bool, remark: Callable[[str], None], needs_agent: bool
) -> AttachRefused | None:
    """Put the recorder into `pid` when it has none. Returns why it could not come where it is not needed. Raises
    AttachRefused when it is needed, and cannot come, may not, or comes later."""
    listed = await client.get(TargetList, "/v1/targets")
    known = [target for target in listed.targets if target.pid == pid]
    # A dead target is asked for what it left, unless another process has its number by now.
    if any(target.alive or target.state == "zombie" for target in known) or (known and not _exists(pid)):
        return None
    if not inject and not needs_agent:
        return None
    if not inject:
        raise AttachRefused(
            f"process {pid} has no recorder, and --no-inject forbids attaching one", f"attach first: probe {pid} inject"
        )
    started = time.perf_counter()
    try:
        with progress(f"attaching to {pid}"):
            attached = await attach(pid)
    except AttachRefused as refusal:
        if needs_agent or not _exists(pid):
            raise
        remark(refusal.message)  # its stacks can be read all the same: it is stopped, say, or waits in the kernel
        return refusal
    if not attached.already:
        remark(f"attached to {pid} in {(time.perf_counter() - started) * 1e3:.0f} ms ({attached.how})")
    return None


def allow_descriptors(num_connections: int) -> None:
    """Raise the limit of open files: every connection is one, and a shell usually allows 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_connections + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        enough = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough), hard))


def _exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
