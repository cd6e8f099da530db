"""Questions to one host server, about many of its targets, that travel as one request.

A request costs the command line a millisecond, and a question in a batch a tenth of it: a job of thousands of ranks is
asked in as many requests as it has hosts. Runs on the CLI's event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field

import httpx

from probe_agent.wire import BatchItem, BatchRequest
from probe_agent.wire.batch import FRAME

__all__ = ["Batches", "NotBatched"]

PATH = "/v1/batch"
#: Batches under way at once: a rank that hangs keeps the one that it is in, and not those after it. A server admits 64
#: questions of one caller, and answers 8 of a batch at a time.
MAX_AT_ONCE = 6
MAX_QUESTIONS = 2000
#: Bodies of one batch; a server takes a request of 1 MiB.
MAX_BODY_BYTES = 400_000


class NotBatched(Exception):
    """The host server is of an older version, or the question is too long: it has to travel alone."""


@dataclass(eq=False)
class _Question:
    path: str
    body: str | None
    answer: asyncio.Future[tuple[int, bytes]]
    status: int | None = None
    pieces: list[bytes] = field(default_factory=list)


class Batches:
    """Gathers what is asked at the same time, and sends it together."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._waiting: list[_Question] = []
        self._under_way: set[asyncio.Task[None]] = set()
        self._is_known = True

    async def ask(self, path: str, body: str | None) -> tuple[int, bytes]:
        """Return the status and the body of the answer: of a POST of `body`, or of a GET without one. Raises
        NotBatched, and what httpx raises."""
        if not self._is_known or (body is not None and len(body) > MAX_BODY_BYTES):
            raise NotBatched
        loop = asyncio.get_running_loop()
        question = _Question(path, body, loop.create_future())
        self._waiting.append(question)
        if len(self._waiting) == 1:
            loop.call_soon(self._send)  # once all who are about to ask have done so
        return await question.answer

    def _send(self) -> None:
        while self._waiting and len(self._under_way) < MAX_AT_ONCE:
            questions = self._next()
            task = asyncio.ensure_future(self._travel(questions))
            self._under_way.add(task)
            task.add_done_callback(self._arrived)

    def _arrived(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._send()

    def _next(self) -> list[_Question]:
        """Take as many of those that wait as fit into one request."""
        bodies: set[str] = set()
        num_bytes = 0
        for num, question in enumerate(self._waiting):
            if question.body is not None and question.body not in bodies:
                bodies.add(question.body)
                num_bytes += len(question.body)
            if num_bytes > MAX_BODY_BYTES or num == MAX_QUESTIONS:
                break
        else:
            num = len(self._waiting)
        taken, self._waiting = self._waiting[:num], self._waiting[num:]
        return taken

    async def _travel(self, questions: Sequence[_Question]) -> None:
        asked = [question for question in questions if not question.answer.done()]
        if not asked:
            return
        traveller = asyncio.current_task()
        assert traveller is not None
        left, has_gone = len(asked), False

        def answered(answer: asyncio.Future[tuple[int, bytes]]) -> None:
            nonlocal left, has_gone
            left -= 1
            has_gone = has_gone or answer.cancelled()
            if not left and has_gone:
                traveller.cancel()  # nobody waits for the rest of it: hanging up ends that at the other end

        for question in asked:
            question.answer.add_done_callback(answered)
        failure: Exception = httpx.RemoteProtocolError("it hung up before its answer was whole")
        try:
            await self._ask(asked)
        except (httpx.HTTPError, httpx.InvalidURL, NotBatched) as caught:
            failure = caught
        except asyncio.CancelledError:
            if left:
                raise
        finally:
            for question in asked:
                question.answer.remove_done_callback(answered)
                if not question.answer.done():
                    question.answer.set_exception(failure)

    async def _ask(self, asked: Sequence[_Question]) -> None:
        bodies = {question.body: at for at, question in enumerate(asked) if question.body is not None}
        numbers = {body: number for number, body in enumerate(bodies)}
        items = tuple(
            BatchItem(question.path, None if question.body is None else numbers[question.body]) for question in asked
        )
        request = asdict(BatchRequest(items, tuple(numbers)))
        async with self._http.stream("POST", PATH, json=request) as response:
            if response.status_code in (404, 405):
                self._is_known = False
                raise NotBatched
            if response.is_error:
                said = response.status_code, await response.aread()
                for question in asked:
                    if not question.answer.done():
                        question.answer.set_result(said)
                return
            async for number, piece in _pieces(response.aiter_bytes()):
                if number >= len(asked):
                    raise httpx.RemoteProtocolError("it answers a question that nobody has asked")
                question = asked[number]
                if question.status is None:
                    question.status = _status(piece)
                elif piece:
                    question.pieces.append(piece)
                elif not question.answer.done():
                    question.answer.set_result((question.status, b"".join(question.pieces)))


def _status(head: bytes) -> int:
    try:
        return int(json.loads(head)["status"])
    except (ValueError, KeyError, TypeError):
        raise httpx.RemoteProtocolError("its answer to a batch has no head") from None


async def _pieces(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[int, bytes]]:
    """Cut the answer into its pieces, each with the number of its question."""
    data = bytearray()
    async for chunk in chunks:
        data += chunk
        at = 0
        while len(data) - at >= FRAME.size:
            number, length = FRAME.unpack_from(data, at)
            end = at + FRAME.size + length
            if end > len(data):
                break
            yield number, bytes(data[at + FRAME.size : end])
            at = end
        del data[:at]
