"""Where a target is: the stacks of its threads."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED

__all__ = ["Backtrace", "Frame", "StacksRequest", "TaskStack", "ThreadStack", "WorkerStack"]


@dataclass(frozen=True)
class StacksRequest:
    """Which stacks, with what only those may see who may run code."""

    __pydantic_config__ = DOCUMENTED

    all: bool = False
    """every thread, not only the main and the training thread"""
    outside: bool = False
    """read them from outside at once, without the recorder"""
    native: bool = False
    """with C and C++ frames: the target stands still while they are read, for some tenths of a second"""
    locals: bool = False
    """with local variables: numbers and texts shortened, tensors as shape, dtype and device, secrets as ***"""
    tasks: bool = False
    """with asyncio tasks and greenlets"""
    workers: bool = False
    """with the stacks of its DataLoader workers"""


@dataclass(frozen=True)
class Frame:
    """One call that has not returned yet."""

    __pydantic_config__ = DOCUMENTED

    func: str
    """name of the function"""
    file: str
    """path of its source in the target; of a native frame its source if that is known, or its library"""
    lineno: int
    """the line being executed"""
    depth: int
    """0 is the innermost call"""
    frame_type: str
    """python or native"""
    source: str | None
    """text of that line; null when the file cannot be read"""
    locals: dict[str, str] | None = None
    """local variables as text; null unless they were asked for"""
    locks: tuple[str, ...] = ()
    """locks that the line is run under, as the source names them; only where a local variable is a lock that is held"""


@dataclass(frozen=True)
class ThreadStack:
    """One thread, innermost frame first."""

    __pydantic_config__ = DOCUMENTED

    thread: str | None
    """its name; null when Python does not know it"""
    ident: int
    """Python's number for it"""
    tid: int | None
    """the kernel's number for it"""
    is_main: bool
    """whether it is the main thread"""
    is_training: bool
    """whether it steps the optimizer"""
    is_probe: bool
    """whether it is one of ours"""
    frames: tuple[Frame, ...]
    """innermost first"""
    holds_gil: bool | None = None
    """whether it held the GIL; null if unknown: the recorder itself holds it while it reads"""
    state: str | None = None
    """what the kernel says of it: running, sleeping, waiting for a disk, stopped, …; null if it cannot be read"""
    syscall: str | None = None
    """the system call it is in; null outside of one, or without the rights of a debugger"""
    waits_in: str | None = None
    """the kernel function it waits in; null when it runs, or the kernel does not say"""
    cpu_s: float | None = None
    """CPU seconds it has used so far; null if they cannot be read"""

    @property
    def kernel(self) -> str:
        """State, system call and kernel function in words; empty if they are not known."""
        if self.state is None:
            return ""
        call = f" in {self.syscall}" if self.syscall else ""
        return f"{self.state}{call}" + (f" ({self.waits_in})" if self.waits_in else "")

    @property
    def no_frame(self) -> str:
        """What stands where its frames would."""
        return f"(no Python frame{f'; {self.kernel}' if self.kernel else ''})"


@dataclass(frozen=True)
class TaskStack:
    """One task of an event loop that is not done, or one greenlet; innermost frame first."""

    __pydantic_config__ = DOCUMENTED

    name: str
    """of the task, or the type of the greenlet"""
    kind: str
    """asyncio or greenlet"""
    is_running: bool
    """whether it ran when the stacks were taken; its frames are then those of its thread"""
    awaits: str | None
    """what it waits for: a future, another task; null if that is not known"""
    frames: tuple[Frame, ...]
    """the chain of its coroutines"""


@dataclass(frozen=True)
class WorkerStack:
    """One DataLoader worker."""

    __pydantic_config__ = DOCUMENTED

    pid: int
    """its process id, as its host sees it"""
    kind: str
    """loader: known from torch; fork: a copy of the target (torch before 2.6)"""
    threads: tuple[ThreadStack, ...]
    """the main thread first; none if they could not be read"""


@dataclass(frozen=True)
class Backtrace:
    """Stacks of one target, and their source."""

    __pydantic_config__ = DOCUMENTED

    threads: tuple[ThreadStack, ...]
    """the main thread first"""
    source: str
    """recorder (asked over its socket), outside (read from its memory: it has no recorder, or a thread holds the
    GIL), faulthandler (written from a signal handler, where its memory cannot be read) or exception (of a target that
    has ended: its uncaught exception)"""
    notes: tuple[str, ...]
    """remarks on this answer"""
    rank: int | None = None
    """rank of the target in its job"""
    tasks: tuple[TaskStack, ...] = ()
    """asyncio tasks and greenlets, if they were asked for"""
    workers: tuple[WorkerStack, ...] = ()
    """DataLoader workers, if they were asked for"""
