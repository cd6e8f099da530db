"""Runs commands of `probe` for the dashboard: verdicts on all ranks of a job, on all its hosts, are made there and
nowhere else.

The commands run in forks of one process that has imported them (`probe_cli/forks.py`), so that one costs a tenth of
what a new interpreter would. That process is started by the first question and ends with the server, or when nobody
has asked for ten minutes. Runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from time import monotonic, time

import probe_agent
from probe_agent.errors import NoAnswer
from probe_agent.wire import JobAnswer

__all__ = ["Commands", "Output"]

#: Two verdicts at once, and two lists of ranks or of rows, which do not wait for those: each is a process that may use
#: a processor.
MAX_AT_ONCE = 2
#: Beyond its own time limit a command has this long to say so.
GRACE_S = 5.0
IDLE_S = 600.0
#: After a command, the same one rests for so many times as long as it took.
REST = 4.0
#: An answer is forgotten after so long.
KEPT_S = 300.0
MAX_OUTPUT_BYTES = 64 << 20
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(probe_agent.__file__)))


@dataclass(frozen=True)
class Output:
    """Output of a command, and its exit code."""

    exit_code: int
    out: bytes
    err: bytes


@dataclass(eq=False)
class _Shared:
    """One run, when it was begun or has ended, and how many wait for it."""

    task: asyncio.Future[JobAnswer]
    at: float
    num_waiting: int = 0

    def is_fresh(self, fresh_s: float) -> bool:
        if not self.task.done():
            return True
        if self.task.cancelled() or self.task.exception() is not None:
            return False
        return monotonic() - self.at <= max(fresh_s, REST * self.task.result().took_s)


class Commands:
    """The process that runs commands, and the answers that are still fresh."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._sending = Lock()
        self._verdicts, self._rows = asyncio.Semaphore(MAX_AT_ONCE), asyncio.Semaphore(MAX_AT_ONCE)
        self._fresh: dict[tuple[str, ...], _Shared] = {}
        self._used = monotonic()

    async def shared(
        self, arguments: tuple[str, ...], timeout_s: float, fresh_s: float, *, is_verdict: bool = False
    ) -> JobAnswer:
        """Return the answer of `arguments`, which may be `fresh_s` old, or `REST` times as old as it took: all who ask
        meanwhile share one run, and a job of thousands of ranks is not asked all the time. A run that nobody waits for
        any more is ended: whoever leaves a view does not keep the next one waiting."""
        shared = self._fresh.get(arguments)
        if shared is None or not shared.is_fresh(fresh_s):
            self._fresh = {key: one for key, one in self._fresh.items() if monotonic() - one.at < KEPT_S}
            task = asyncio.ensure_future(self.answer(arguments, timeout_s, is_verdict=is_verdict))
            shared = self._fresh[arguments] = _Shared(task, monotonic())
            task.add_done_callback(lambda done: self._note(arguments, done))
        shared.num_waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.num_waiting -= 1
            if not shared.num_waiting and not shared.task.done():
                if self._fresh.get(arguments) is shared:
                    del self._fresh[arguments]
                shared.task.cancel()

    def _note(self, arguments: tuple[str, ...], done: asyncio.Future[JobAnswer]) -> None:
        shared = self._fresh.get(arguments)
        if shared is None or shared.task is not done:
            return
        if done.cancelled() or done.exception() is not None:
            del self._fresh[arguments]
        else:
            shared.at = monotonic()

    async def answer(self, arguments: tuple[str, ...], timeout_s: float, *, is_verdict: bool = False) -> JobAnswer:
        """Run one command whose stdout is a JSON object. Raises NoAnswer."""
        began = monotonic()
        places = self._verdicts if is_verdict else self._rows
        try:
            await asyncio.wait_for(places.acquire(), timeout_s)
        except asyncio.TimeoutError:
            raise NoAnswer(
                f"{MAX_AT_ONCE} other questions about the job took longer than {timeout_s:g} s", "close other pages"
            ) from None
        try:
            output = await self.run(arguments, timeout_s)
        finally:
            places.release()
        remarks = tuple(output.err.decode("utf-8", "replace").strip().splitlines()[:200])
        try:
            answer = json.loads(output.out) if output.out.strip() else {}
        except ValueError:
            raise NoAnswer(f"probe {' '.join(arguments)} wrote no JSON", "\n".join(remarks[:3])) from None
        shown = answer if isinstance(answer, dict) else {"rows": answer}
        return JobAnswer("probe " + " ".join(arguments), output.exit_code, shown, remarks, monotonic() - began, time())

    def end_if_idle(self) -> None:
        """End the process when nobody has asked for `IDLE_S`."""
        if self._process is not None and monotonic() - self._used > IDLE_S:
            self.close()

    async def run(self, arguments: tuple[str, ...], timeout_s: float) -> Output:
        """Run one command and return what it wrote. Raises NoAnswer when it takes longer than `timeout_s`."""
        self._used = monotonic()
        asyncio.get_running_loop().call_later(IDLE_S + 1, self.end_if_idle)
        pipes = [os.pipe() for _ in range(3)]
        ours, theirs = [pipe[0] for pipe in pipes], [pipe[1] for pipe in pipes]
        try:
            await asyncio.to_thread(self._send, arguments, timeout_s + GRACE_S, theirs)
        except BaseException:
            _close(ours)
            raise
        finally:
            _close(theirs)
        try:
            out, err, status = await asyncio.wait_for(_read_together(ours), timeout_s + GRACE_S)
        except asyncio.TimeoutError:
            raise NoAnswer(
                f"probe {' '.join(arguments[-4:])} took longer than {timeout_s:g} s", "ask fewer ranks, or later"
            ) from None
        return Output(int(status or b"1"), out, err)

    def _send(self, arguments: tuple[str, ...], timeout_s: float, descriptors: list[int]) -> None:
        said = json.dumps({"arguments": arguments, "timeout_s": timeout_s}).encode()
        try:
            with self._sending:  # two first questions start one process
                if self._process is None or self._process.poll() is not None:
                    self._start()
                assert self._socket is not None
                socket.send_fds(self._socket, [len(said).to_bytes(4, "little") + said], descriptors)
        except OSError as failure:
            self.close()
            raise NoAnswer(f"the process that runs commands has ended: {failure.strerror}", "try again") from None

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        code = f"import sys; sys.path.insert(0, {_ROOT!r}); from probe_cli.forks import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            cwd="/",
            env={
                **{name: value for name, value in os.environ.items() if name != "PROBE_ENDPOINT"},
                "PROBE": "0",
                "OPENBLAS_NUM_THREADS": "1",
            },
        )
        theirs.close()
        self._socket = ours

    def close(self) -> None:
        """End the process; a command that runs ends as well."""
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)
            self._process.wait()
        self._process = self._socket = None


async def _read_together(descriptors: list[int]) -> list[bytes]:
    return await asyncio.gather(*map(_read_all, descriptors))


async def _read_all(descriptor: int) -> bytes:
    """Read a pipe to its end."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", 0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    chunks, size = [], 0
    try:
        while chunk := await reader.read(1 << 16):
            size += len(chunk)
            if size > MAX_OUTPUT_BYTES:
                raise NoAnswer(f"the answer is longer than {MAX_OUTPUT_BYTES >> 20} MiB", "ask for fewer rows")
            chunks.append(chunk)
    finally:
        transport.close()
    return b"".join(chunks)


def _close(descriptors: list[int]) -> None:
    for each in descriptors:
        os.close(each)
