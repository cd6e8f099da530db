"""Pool of query workers, in the server: lends a worker to each statement, limits its time, replaces it if needed.

Runs on the server's event loop. A statement takes 0.5 ms longer in a ready worker than in the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

from probe_agent import errors
from probe_agent.errors import LimitReached, NoAnswer, ProbeError, QueryFailed
from probe_agent.sql.engine.request import out_of_time

from .frames import HEAD, MAX_HEAD_BYTES, Job, packed
from .process import ZygoteProcess
from .zygote import GIVE_WAY, KILL, TURN_S

__all__ = ["REST_S", "Asker", "Reply", "Workers"]

#: Who asks: a token for reading, a token for control, or this user on this host.
Asker = Literal["reader", "control", "owner"]
_PROCESSORS = len(os.sched_getaffinity(0))
#: Statements at a time. Each kind has its own, so that nobody takes those of the owner. Those of readers leave at least
#: half of the processors alone: even one that gives way takes up to 1.5 % of one that the job uses.
_AT_ONCE: Mapping[Asker, int] = {"reader": max(1, min(4, _PROCESSORS // 2)), "control": 4, "owner": 8}
#: What readers may take of a processor at the priority of everybody; beyond that they get what nobody else wants. So a
#: short question now and then is answered at once on a busy host, and a flood does not keep the job waiting.
_CREDIT_A_SECOND, _MAX_CREDIT_S = 0.02, 3.0
#: A statement that runs for so long, or uses up the credit, gives way. A worker that has once done that does so for
#: ever, so it is replaced when there is credit for so much; to get a new one ready takes this much.
_SHORT_S, _ENOUGH_S, _BIRTH_S = 1.0, 0.5, 0.03
#: How long a worker that gives way rests after each turn, so that all of them together use a sixteenth of the
#: processors. One that the job leaves idle is not free: two may be one core, and all of them share caches and memory.
REST_S = TURN_S * max(0.0, 16 * _AT_ONCE["reader"] / _PROCESSORS - 1)
#: Threads of DuckDB: of a ring's 1,000,000 rows it makes nine parts.
_MAX_THREADS = 8
#: Workers that wait for the next statement, of each kind.
_MAX_IDLE = 4
#: Of an answer so much is read at once; a longer one stays in its worker, and goes on as its client takes it.
CHUNK_BYTES = 1 << 20
#: How long a client may take to take an answer that a worker has to keep.
TAKE_S = 60.0
_MAX_BODY_SLACK = 16 << 20

TakeLiveRows = Callable[[Sequence[str]], Awaitable[object]]


@dataclass
class Reply:
    """An answer on its way from a worker. It must be closed."""

    length: int
    truncated: bool
    notes: tuple[str, ...]
    tables: Mapping[str, str]
    missing: tuple[str, ...]
    _first: bytes
    _worker: _Worker | None
    _release: contextlib.AsyncExitStack

    async def pieces(self) -> AsyncIterator[bytes]:
        """Iterate over the bytes of the answer. Raises NoAnswer if its worker ends, or the client takes too long."""
        left = self.length - len(self._first)
        if self._first:
            yield self._first
        if not left:
            return
        assert self._worker is not None
        ends = asyncio.get_running_loop().time() + TAKE_S
        while left:
            async with _until(ends):
                piece = await self._worker.some(min(left, CHUNK_BYTES))
            left -= len(piece)
            yield piece
        await self._worker.finished()

    async def body(self) -> bytes:
        """Return the whole answer and close it."""
        try:
            return b"".join([piece async for piece in self.pieces()])
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Return the worker to the pool; one that has not sent everything is ended."""
        await self._release.aclose()


class Workers:
    """Workers of one server, started by `start` or the first statement."""

    def __init__(self) -> None:
        #: The one there is, if any.
        self._zygotes: list[ZygoteProcess] = []
        self._idle: dict[bool, list[_Worker]] = {True: [], False: []}
        # Who drops an app that it has never ended drops its processes, too; with ours they end by themselves.
        weakref.finalize(self, _end_all, self._zygotes, self._idle).atexit = False
        self._credit = _Credit()
        self._turns = {asker: asyncio.Semaphore(num) for asker, num in _AT_ONCE.items()}

    def start(self) -> None:
        """Start a worker for the owner."""
        if not self._idle[False]:
            self._idle[False].append(self._new(for_readers=False))

    def close(self) -> None:
        """End all workers, whatever they do."""
        _end_all(self._zygotes, self._idle)

    async def run(self, job: Job, asker: Asker, take: TakeLiveRows) -> Reply:
        """Run a statement, which cancelling this ends. Raises QueryFailed, BadRequest, NoAnswer."""
        turn = self._turns[asker]
        try:
            await asyncio.wait_for(turn.acquire(), job.request.timeout_s)
        except asyncio.TimeoutError:
            raise NoAnswer(
                f"{_AT_ONCE[asker]} other queries are running, and none ended within {job.request.timeout_s:g} s",
                "try again in a moment",
            ) from None
        release = contextlib.AsyncExitStack()
        release.callback(turn.release)
        try:
            worker = self._lend(for_readers=asker == "reader")
            release.callback(self._take_back, worker)
            if worker.for_readers:
                self._hold_back(worker, release)
            return await worker.answer(job, take, release)
        except BaseException:
            await release.aclose()
            raise

    def _lend(self, *, for_readers: bool) -> _Worker:
        idle = self._idle[for_readers]
        while idle:
            worker = idle.pop()
            if not worker.has_ended:
                return worker
            worker.end()
        return self._new(for_readers=for_readers)

    def _hold_back(self, worker: _Worker, release: contextlib.AsyncExitStack) -> None:
        """Make `worker` give way once its statement is not a short one, or readers have no credit left."""
        began = monotonic()
        if worker.gives_way:
            return
        if not self._credit.spend(0):
            worker.give_way()
            return
        short_s = min(_SHORT_S, self._credit.left_s)
        timer = asyncio.get_running_loop().call_later(short_s, worker.give_way)
        release.callback(lambda: self._credit.spend(min(short_s, monotonic() - began)))
        release.callback(timer.cancel)

    def _take_back(self, worker: _Worker) -> None:
        idle = self._idle[worker.for_readers]
        is_slow = worker.gives_way and self._credit.has(_ENOUGH_S)
        if worker.is_fit and not is_slow and worker.zygote in self._zygotes and len(idle) < _MAX_IDLE:
            idle.append(worker)
            return
        worker.end()
        if not idle and worker.zygote in self._zygotes:
            with contextlib.suppress(OSError):  # whoever asks next is told
                idle.append(self._new(for_readers=worker.for_readers))

    def _new(self, *, for_readers: bool) -> _Worker:
        if self._zygotes and self._zygotes[0].has_ended:
            self._zygotes.pop().close()
        if not self._zygotes:
            self._zygotes.append(ZygoteProcess())
        zygote = self._zygotes[0]
        threads = 1 if for_readers else min(_MAX_THREADS, _PROCESSORS)
        gives_way = for_readers and not self._credit.spend(_BIRTH_S)
        number, connection = zygote.fork(threads, rest_s=REST_S if for_readers else 0.0, gives_way=gives_way)
        connection.setblocking(False)
        return _Worker(number, connection, zygote, for_readers, gives_way)


def _end_all(zygotes: list[ZygoteProcess], idle: Mapping[bool, list[_Worker]]) -> None:
    for waiting in idle.values():
        while waiting:
            waiting.pop().connection.close()
    while zygotes:
        zygotes.pop().close()


class _Credit:
    """CPU time that accrues slowly, up to a bound."""

    def __init__(self) -> None:
        self.left_s = _MAX_CREDIT_S
        self._at = monotonic()

    def has(self, seconds: float) -> bool:
        """Return whether there is this much of it."""
        now = monotonic()
        self.left_s = min(_MAX_CREDIT_S, self.left_s + (now - self._at) * _CREDIT_A_SECOND)
        self._at = now
        return self.left_s > seconds

    def spend(self, seconds: float) -> bool:
        """Take this much of it, if there is any. Return False if there is none."""
        if not self.has(0):
            return False
        self.left_s -= seconds
        return True


class _Worker:
    """One worker, lent to one statement at a time."""

    def __init__(
        self, number: int, connection: socket.socket, zygote: ZygoteProcess, for_readers: bool, gives_way: bool
    ) -> None:
        self.number = number
        self.connection = connection
        self.zygote = zygote
        self.for_readers = for_readers
        self.gives_way = gives_way
        #: Whether it waits for a statement, and may be given one.
        self.is_fit = True

    @property
    def has_ended(self) -> bool:
        """Whether it has ended while idle. An idle worker says nothing, so anything to read is the news of its end."""
        try:
            self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return True

    async def answer(self, job: Job, take: TakeLiveRows, release: contextlib.AsyncExitStack) -> Reply:
        """Run `job` here."""
        self.is_fit = False
        loop = asyncio.get_running_loop()
        ends = loop.time() + job.request.timeout_s
        try:
            async with _until(ends):
                await self._send(job)
                said = await self._head()
                if "live" in said:
                    await self._send(await take(said["live"]))
                    said = await self._head()
        except asyncio.TimeoutError:
            raise out_of_time(job.request.timeout_s, gave_way=self.gives_way) from None
        except ConnectionError:
            raise self._ended(job, None) from None
        if "answer" not in said:
            raise await self._failure(said, job)
        length = int(said["length"])
        if length > job.request.memory_mb * 1_000_000 + _MAX_BODY_SLACK:
            raise ProbeError(
                "a query worker announced an answer that is longer than allowed", "report this as a bug of Probe"
            )
        first = b""
        worker: _Worker | None = self
        if length <= CHUNK_BYTES:
            first = await self._exactly(length)
            await self.finished()
            worker = None
        told = said["answer"]
        notes, missing = tuple(told["notes"]), tuple(told["missing"])
        reply = Reply(length, bool(told["truncated"]), notes, dict(told["tables"]), missing, first, worker, release)
        if worker is None:
            await reply.aclose()
        return reply

    async def some(self, most: int) -> bytes:
        """Read some bytes of the answer."""
        data = await asyncio.get_running_loop().sock_recv(self.connection, most)
        if not data:
            raise NoAnswer("the worker of this query ended while its answer was sent", "ask again")
        return data

    async def finished(self) -> None:
        """Read that it has sent everything, and whether it can run another statement."""
        said = await self._head()
        self.is_fit = bool(said.get("done") and said.get("fit"))

    def end(self) -> None:
        """End it, whatever it does."""
        self.zygote.tell(self.number, KILL)
        self.connection.close()

    def give_way(self) -> None:
        """Leave the CPUs to others from now on."""
        if not self.gives_way:
            self.gives_way = True
            self.zygote.tell(self.number, GIVE_WAY)

    async def _failure(self, said: Mapping[str, Any], job: Job) -> ProbeError:
        if "error" in said:
            with contextlib.suppress(ConnectionError):
                await self.finished()
            kind = getattr(errors, str(said["error"]), ProbeError)
            failure: ProbeError = kind(str(said["message"]), str(said["hint"]))
            return failure
        if "fault" in said:
            raise RuntimeError(f"in a query worker:\n{said['fault']}")
        return self._ended(job, said)

    def _ended(self, job: Job, said: Mapping[str, Any] | None) -> ProbeError:
        """Return the error of a worker that has ended without an answer."""
        if said is None or "unborn" in said:
            why = said["unborn"] if said else self.zygote.why() if self.zygote.has_ended else "it was ended"
            return NoAnswer(
                f"cannot start a query worker: {why}", "try again, and check that this host has memory left"
            )
        code = int(said.get("ended", 0))
        if code == -signal.SIGXCPU:
            return out_of_time(job.request.timeout_s, gave_way=self.gives_way)
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if code == -signal.SIGKILL:
            return LimitReached(
                "the kernel ended the process that ran the query (SIGKILL): this host has no memory left",
                "select less, or try again when the host has memory",
            )
        return QueryFailed(
            f"the query crashed the process that ran it ({name}); nothing else was harmed",
            "nest the statement less, or select less at a time",
        )

    async def _send(self, message: object) -> None:
        await asyncio.get_running_loop().sock_sendall(self.connection, packed(message))

    async def _head(self) -> dict[str, Any]:
        (length,) = HEAD.unpack(await self._exactly(HEAD.size))
        if length > MAX_HEAD_BYTES:
            raise ConnectionResetError("a query worker sent something that is not ours")
        said = json.loads(await self._exactly(length))
        assert isinstance(said, dict)
        return said

    async def _exactly(self, length: int) -> bytes:
        data = bytearray(length)
        view = memoryview(data)
        loop = asyncio.get_running_loop()
        at = 0
        while at < length:
            num = await loop.sock_recv_into(self.connection, view[at:])
            if not num:
                raise ConnectionResetError("the worker has ended")
            at += num
        return bytes(data)


@contextlib.asynccontextmanager
async def _until(ends: float) -> AsyncIterator[None]:
    """Cancel the block at this time of the loop, and raise TimeoutError (asyncio.timeout needs Python 3.11)."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    is_due = False

    def due() -> None:
        nonlocal is_due
        is_due = True
        task.cancel()

    timer = loop.call_at(min(ends, loop.time() + 1e8), due)
    try:
        yield
    except asyncio.CancelledError:
        if is_due:
            raise asyncio.TimeoutError from None
        raise
    finally:
        timer.cancel()
