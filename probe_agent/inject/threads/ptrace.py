"""Stops one thread, changes where it goes on, and lets it go: the only calls of ours that touch a running thread.

Runs in the attaching process, on a thread of its own that ends with the work: a trace belongs to the thread that
began it, so its end lets everything go, whatever happened, and Ctrl-C cannot come in between. When the whole
process dies at any instant the kernel does the same, and the target's thread goes on as it is.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from time import monotonic, perf_counter, sleep
from typing import TypeVar

from probe_agent.errors import AttachRefused

__all__ = ["CAPABILITY", "NT_PRSTATUS", "PTRACE_CALL", "Busy", "Seized", "on_own_thread", "seized", "why_forbidden"]

#: Rights that containers come without.
CAPABILITY = (
    "in Docker: docker run --cap-add=SYS_PTRACE (from a container beside it also --pid=container:NAME);"
    " in Kubernetes: securityContext.capabilities.add: [SYS_PTRACE], for a sidecar shareProcessNamespace: true too"
)
#: The system call itself, which the seccomp profile of a container may forbid.
PTRACE_CALL = (
    "in Docker: docker run --cap-add=SYS_PTRACE, whose profile allows it, or --security-opt seccomp=unconfined;"
    " in Kubernetes: securityContext.capabilities.add: [SYS_PTRACE] and seccompProfile.type: Unconfined;"
    " or attach from the host"
)

Result = TypeVar("Result")

_CONT, _DETACH = 7, 17
_GETREGSET, _SETREGSET, _SEIZE, _INTERRUPT, _GET_RSEQ = 0x4204, 0x4205, 0x4206, 0x4207, 0x420F
_GET_SECCOMP_FILTER = 0x420C
NT_PRSTATUS = 1
_EVENT_STOP = 128
_WALL = 0x40000000
_INSTRUCTION_BYTES = 8
_NAP_S = 0.00001
_PR_SET_TIMERSLACK = 29
_STOPS = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class Busy(Exception):
    """The thread is where it must not be borrowed; a moment later it will mostly have left."""


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _ptrace(request: int, tid: int, address: int = 0, data: object = None) -> int:
    done: int = _libc.ptrace(request, tid, address, data)
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return done


def why_forbidden() -> str:
    """Why we may not even call ptrace; empty when we may. Touches nobody: there is no thread 0."""
    try:
        _ptrace(_SEIZE, 0)
    except OSError as error:
        return "" if error.errno == errno.ESRCH else str(error.strerror)
    return ""


def on_own_thread(work: Callable[[], Result]) -> Result:
    """The result of `work`, which may trace: what it still traces in the end is let go by the end of its thread."""
    with ThreadPoolExecutor(1, "probe-ptrace", _be_quick) as thread:
        return thread.submit(work).result()


def _be_quick() -> None:
    """While somebody stands still for us we want no one else to have the processor, and short naps to be short."""
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


class Seized:
    """A thread that we trace: it runs until `stop`, and again when the `with` block ends."""

    def __init__(self, tid: int, memory: int) -> None:
        self.tid = tid
        self._memory = memory
        self._stopped_at: float | None = None

    @property
    def stopped_s(self) -> float:
        """For how long it has been standing still."""
        return 0.0 if self._stopped_at is None else perf_counter() - self._stopped_at

    def stop(self, timeout_s: float = 1.5) -> None:
        """Make this thread, and no other, stand still. Raises AttachRefused when it does not."""
        _ptrace(_INTERRUPT, self.tid)
        deadline = monotonic() + timeout_s
        while True:
            waited, status = os.waitpid(self.tid, _WALL | os.WNOHANG)
            if waited == 0:
                if monotonic() > deadline:
                    raise AttachRefused(
                        f"thread {self.tid} did not stop within {timeout_s:g} s: it is in an uninterruptible wait",
                        f"look at the disk, device or child it waits for: cat /proc/{self.tid}/stack",
                    )
                sleep(_NAP_S)  # not a loop: the thread may need this very processor to come to its stop
            elif not os.WIFSTOPPED(status):
                raise AttachRefused(f"thread {self.tid} ended while we attached", "probe list shows what runs")
            elif status >> 16 != _EVENT_STOP:
                # A signal was on its way to the thread: it gets it, and stops for us right after.
                _ptrace(_CONT, self.tid, 0, os.WSTOPSIG(status))
            elif os.WSTOPSIG(status) in _STOPS:
                raise AttachRefused("the process is stopped by a signal", "let it go on first: kill -CONT PID")
            else:
                self._stopped_at = perf_counter()
                return

    def registers(self, kind: int, size: int) -> bytes:
        """A register set as the kernel has it; as many bytes as this machine uses, `size` at most."""
        buffer = ctypes.create_string_buffer(size)
        vector = _IoVec(ctypes.addressof(buffer), size)
        _ptrace(_GETREGSET, self.tid, kind, ctypes.byref(vector))
        return buffer.raw[: vector.size]

    def set_registers(self, kind: int, data: bytes) -> None:
        """Replace a register set."""
        buffer = ctypes.create_string_buffer(data, len(data))
        vector = _IoVec(ctypes.addressof(buffer), len(data))
        _ptrace(_SETREGSET, self.tid, kind, ctypes.byref(vector))

    def read(self, address: int, size: int) -> bytes:
        """Bytes of its memory, fewer where it ends. Raises ProcessLookupError once the process has none any more."""
        data = os.pread(self._memory, size, address)
        if size and not data:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        return data

    def write(self, address: int, data: bytes) -> None:
        """Change bytes of its memory, also where it may not write itself."""
        num_written = os.pwrite(self._memory, data, address)
        if not num_written:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        if num_written != len(data):
            raise OSError(errno.EFAULT, f"only a part of {len(data)} bytes could be written")

    def rseq_area(self) -> int:
        """Where the thread keeps its restartable sequence (`struct rseq`); 0 when it has none."""
        buffer = (ctypes.c_uint64 * 3)()
        try:
            _ptrace(_GET_RSEQ, self.tid, ctypes.sizeof(buffer), ctypes.byref(buffer))
        except OSError:
            return 0  # a kernel older than 5.13 does not tell
        return int(buffer[0])

    def seccomp_filters(self) -> list[bytes]:
        """The programs of its seccomp filters, the newest first. Raises OSError without CAP_SYS_ADMIN."""
        found: list[bytes] = []
        while True:
            try:
                length = _ptrace(_GET_SECCOMP_FILTER, self.tid, len(found))
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return found
                raise
            buffer = ctypes.create_string_buffer(length * _INSTRUCTION_BYTES)
            _ptrace(_GET_SECCOMP_FILTER, self.tid, len(found), buffer)
            found.append(buffer.raw)


@contextmanager
def seized(tid: int) -> Iterator[Seized]:
    """Trace the thread `tid`, and no other, for the length of the block. Only inside `on_own_thread`."""
    try:
        _ptrace(_SEIZE, tid)
    except OSError as error:
        raise AttachRefused(
            f"cannot attach to thread {tid}: the kernel refused ({error.strerror})",
            "probe doctor PID says which rule stands in the way; if it finds none, a security module (AppArmor,"
            f" SELinux) or a seccomp filter does; {PTRACE_CALL}",
        ) from None
    # Through the thread that we trace: some kernels let nobody else write to code.
    memory = os.open(f"/proc/{tid}/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        yield Seized(tid, memory)
    finally:
        os.close(memory)
        try:
            _ptrace(_DETACH, tid)
        except OSError as error:
            # It runs (only a standing thread can be let go) or is gone: the end of our own thread lets it go.
            if error.errno != errno.ESRCH:
                raise
