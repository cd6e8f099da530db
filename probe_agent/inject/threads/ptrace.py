"""ptrace: stops one thread, changes where it goes on, and releases it.

Runs in the attaching process, on a thread of its own that ends with the work: a trace belongs to the thread that began
it, so the end of that thread releases the target whatever happened, and Ctrl-C cannot interrupt it. If the attaching
process dies at any instant, the kernel does the same.
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
from probe_agent.procfs import ENDED, Process

__all__ = ["CAPABILITY", "NT_PRSTATUS", "PTRACE_CALL", "Busy", "Seized", "on_own_thread", "seized", "why_forbidden"]

#: Remedy for a right that containers do not have by default.
CAPABILITY = (
    "in Docker: docker run --cap-add=SYS_PTRACE (from a container beside it also --pid=container:NAME);"
    " in Kubernetes: securityContext.capabilities.add: [SYS_PTRACE], for a sidecar shareProcessNamespace: true too"
)
#: Remedy for a container whose seccomp profile forbids the system call.
PTRACE_CALL = (
    "in Docker: docker run --cap-add=SYS_PTRACE, whose profile allows it, or --security-opt seccomp=unconfined;"
    " in Kubernetes: securityContext.capabilities.add: [SYS_PTRACE] and seccompProfile.type: Unconfined;"
    " or attach from the host"
)

Result = TypeVar("Result")
#: How long a thread that only waits for a processor may take to stop. It costs the target nothing.
_STARVED_S = 10.0

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
    """The thread is where it must not be borrowed; a moment later it has usually left."""


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _ptrace(request: int, tid: int, address: int = 0, data: object = None) -> int:
    done: int = _libc.ptrace(request, tid, address, data)
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return done


def why_forbidden() -> str:
    """Return why we may not call ptrace; empty if we may. Touches no thread: it asks for thread 0."""
    try:
        _ptrace(_SEIZE, 0)
    except OSError as error:
        return "" if error.errno == errno.ESRCH else str(error.strerror)
    return ""


def on_own_thread(work: Callable[[], Result]) -> Result:
    """Return the result of `work`, which may trace; the end of its thread releases what it still traces."""
    with ThreadPoolExecutor(1, "probe-ptrace", _be_quick) as thread:
        return thread.submit(work).result()


def _be_quick() -> None:
    """Raise our priority while a thread stands still for us, and make short naps short."""
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
        """How long it has been standing still."""
        return 0.0 if self._stopped_at is None else perf_counter() - self._stopped_at

    def stop(self, timeout_s: float = 1.5) -> None:
        """Stop this thread and no other. Raises AttachRefused if it does not stop: in an uninterruptible wait within
        `timeout_s`, otherwise, on a host without a free processor, within `_STARVED_S`."""
        _ptrace(_INTERRUPT, self.tid)
        began = monotonic()
        while True:
            waited, status = os.waitpid(self.tid, _WALL | os.WNOHANG)
            if waited == 0:
                if monotonic() > began + timeout_s:
                    self._give_up(monotonic() - began)
                sleep(_NAP_S)  # not a loop: the thread may need this very processor to come to its stop
            elif not os.WIFSTOPPED(status):
                raise AttachRefused(f"thread {self.tid} ended while we attached", "probe list shows what runs")
            elif status >> 16 != _EVENT_STOP:
                # A signal was pending: the thread gets it, and stops right after.
                _ptrace(_CONT, self.tid, 0, os.WSTOPSIG(status))
            elif os.WSTOPSIG(status) in _STOPS:
                raise AttachRefused("the process is stopped by a signal", "let it go on first: kill -CONT PID")
            else:
                self._stopped_at = perf_counter()
                return

    def _give_up(self, waited_s: float) -> None:
        """Raise AttachRefused, unless the thread only gets no processor, and may still. It runs until it stops."""
        try:
            state = Process(self.tid).stat_now().letter
        except ENDED:
            return  # which the next look says
        if state == "D":
            raise AttachRefused(
                f"thread {self.tid} did not stop within {waited_s:.1f} s: it is in an uninterruptible wait",
                f"look at the disk, device or child it waits for: cat /proc/{self.tid}/stack",
            )
        if waited_s > _STARVED_S:
            raise AttachRefused(
                f"thread {self.tid} (state {state}) did not stop within {waited_s:.0f} s: it gets no processor",
                "see what takes the processors of this host (top), and try again",
            )

    def registers(self, kind: int, size: int) -> bytes:
        """Return a register set as the kernel has it, at most `size` bytes."""
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
        """Return bytes of its memory, fewer at the end of a mapping. Raises ProcessLookupError once it has ended."""
        data = os.pread(self._memory, size, address)
        if size and not data:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        return data

    def write(self, address: int, data: bytes) -> None:
        """Change bytes of its memory, even read-only ones."""
        num_written = os.pwrite(self._memory, data, address)
        if not num_written:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        if num_written != len(data):
            raise OSError(errno.EFAULT, f"only a part of {len(data)} bytes could be written")

    def rseq_area(self) -> int:
        """Return the address of the thread's `struct rseq` (restartable sequences); 0 if it has none."""
        buffer = (ctypes.c_uint64 * 3)()
        try:
            _ptrace(_GET_RSEQ, self.tid, ctypes.sizeof(buffer), ctypes.byref(buffer))
        except OSError:
            return 0  # a kernel older than 5.13 does not tell
        return int(buffer[0])

    def seccomp_filters(self) -> list[bytes]:
        """Return the programs of its seccomp filters, the newest first. Raises OSError without CAP_SYS_ADMIN."""
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
    """Trace the thread `tid` and no other inside the block. Only inside `on_own_thread`."""
    try:
        _ptrace(_SEIZE, tid)
    except OSError as error:
        raise AttachRefused(
            f"cannot attach to thread {tid}: the kernel refused ({error.strerror})",
            "probe doctor PID says which rule stands in the way; if it finds none, a security module (AppArmor,"
            f" SELinux) or a seccomp filter does; {PTRACE_CALL}",
        ) from None
    # Through the traced thread: some kernels let only the tracer write to code.
    memory = os.open(f"/proc/{tid}/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        yield Seized(tid, memory)
    finally:
        os.close(memory)
        try:
            _ptrace(_DETACH, tid)
        except OSError as error:
            # It runs (only a stopped thread can be released) or is gone: the end of our thread releases it.
            if error.errno != errno.ESRCH:
                raise
