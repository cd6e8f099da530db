"""Where a target is: the stacks of its threads."""

from __future__ import annotations

from dataclasses import dataclass

from ._documented import DOCUMENTED

__all__ = ["Backtrace", "Frame", "ThreadStack"]


@dataclass(frozen=True)
class Frame:
    """One call that has not returned yet."""

    __pydantic_config__ = DOCUMENTED

    func: str
    """name of the function"""
    file: str
    """path of its source in the target"""
    lineno: int
    """the line being executed"""
    depth: int
    """0 is the innermost call"""
    frame_type: str
    """python or native"""
    source: str | None
    """text of that line; null when the file cannot be read"""


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
class Backtrace:
    """Stacks of one target, and their source."""

    __pydantic_config__ = DOCUMENTED

    threads: tuple[ThreadStack, ...]
    """the main thread first"""
    source: str
    """recorder (asked over its socket), outside (read from its memory: it has no recorder, or a thread holds the
    GIL) or faulthandler (written from a signal handler, where its memory cannot be read)"""
    notes: tuple[str, ...]
    """remarks on this answer"""
    rank: int | None = None
    """rank of the target in its job"""
