"""Activity of a rank, from the stack of its training thread and what the kernel says of that thread.

The call that the job's innermost line makes decides: frames of the standard library and of torch have stable names. A C
function has no frame; the line that calls it tells what it does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from probe_agent.wire import Backtrace, Frame, ThreadStack

__all__ = ["Activity", "Doing", "activity_of", "doing", "has_moved", "is_job", "job_frame", "place", "trains"]


class Activity(Enum):
    """What takes a rank's time. The value completes `rank 3 …`."""

    COLLECTIVE = "is in a collective"
    INIT = "waits to join a process group"
    DESTROY = "is in destroy_process_group"
    STORE = "waits for the job's store"
    DATA = "waits for its data loader"
    SAVE = "saves"
    LOAD = "loads a checkpoint"
    COMPILE = "compiles"
    LOCK = "waits for a lock"
    FILE_LOCK = "waits for a lock on a file"
    EVENT = "waits for an event of another thread"
    FUTURE = "waits for a future"
    JOIN = "waits for a thread to end"
    QUEUE = "waits for a queue"
    LOOP = "waits in its event loop"
    CHILD = "waits for a process that it started"
    SLEEP = "sleeps"
    READ = "reads a file, pipe or socket"
    INPUT = "waits for input from its terminal"
    DEBUGGER = "is in a debugger"
    EXIT = "has ended its program and shuts down"
    DISK = "waits uninterruptibly in the kernel, for storage or a driver"
    STOPPED = "is stopped by a signal"
    ENDED = "has ended"
    GIL = "keeps the GIL in native code"
    PYTHON = "runs"
    NATIVE = "waits in native code"
    UNKNOWN = "is somewhere that cannot be seen"

    @property
    def takes_long(self) -> bool:
        """Return whether a healthy job may do this for a minute or two without ending a step or moving a frame."""
        return self in _TAKE_LONG


#: Told with what the kernel says.
_OF_THE_KERNEL = {Activity.DISK, Activity.NATIVE}
_TAKE_LONG = {
    Activity.SAVE,
    Activity.LOAD,
    Activity.COMPILE,
    Activity.INIT,
    Activity.STORE,
    Activity.DISK,
    Activity.READ,  # storage may be behind a file, a socket, or a pipe
    Activity.CHILD,
}


@dataclass(frozen=True)
class Doing:
    """Activity of one rank, and the line of the job's own code that led to it."""

    activity: Activity
    #: `train_step (train.py:88)`; None where no frame is the job's own.
    frame: str | None = None
    #: The function that decided, as `save`.
    detail: str = ""
    #: What called the job's own code, further out.
    within: Activity | None = None
    #: What the kernel says of the thread: `sleeping in futex (futex_wait_queue)`.
    kernel: str = ""

    @property
    def takes_long(self) -> bool:
        """Return whether a healthy job may do this for a minute or two. What a part of saving or loading does may be
        anything: a sleep, for instance, before storage is tried again."""
        return self.activity.takes_long or self.within in _CONTEXTS - {Activity.EXIT}

    @property
    def is_running(self) -> bool:
        """Whether the thread was on a CPU."""
        return self.kernel.startswith("running")

    def __str__(self) -> str:
        where = f" in {self.frame}" if self.frame else ""
        if self.activity is Activity.COLLECTIVE and self.detail:
            return f"is in {self.detail}{where}"
        detail = f" ({self.detail})" if self.detail else ""
        within = f", called while it {self.within.value}" if self.within else ""
        kernel = f" [{self.kernel}]" if self.kernel and self.activity in _OF_THE_KERNEL else ""
        return f"{self.activity.value}{detail}{where}{within}{kernel}"


#: The end of a file's path, the function, and what it means; the first one that fits a frame.
_FRAMES = [
    (r"torch/utils/data/dataloader\.py$", r"_?(try_)?(next|get)_data|_get_data|__next__", Activity.DATA),
    (r"torch/distributed/checkpoint/.*\.py$", r".*load.*", Activity.LOAD),
    (r"torch/distributed/checkpoint/.*\.py$", r".*", Activity.SAVE),
    (r"torch/serialization\.py$", r"load|_load|_legacy_load", Activity.LOAD),
    (r"torch/serialization\.py$", r"save|_save|_legacy_save|_open_zipfile_writer.*|__exit__", Activity.SAVE),
    (r"safetensors/.*\.py$", r"save.*", Activity.SAVE),
    (r"torch/distributed/distributed_c10d\.py$", r"destroy_process_group|_shutdown_backend", Activity.DESTROY),
    (r"torch/distributed/distributed_c10d\.py$", r"init_process_group|new_group.*|split_group", Activity.INIT),
    (r"torch/distributed/rendezvous\.py$", r".*", Activity.INIT),
    (r"torch/distributed/elastic/utils/store\.py$", r".*", Activity.STORE),
    (r"torch/distributed/(distributed_c10d|_functional_collectives)\.py$", r"[a-z].*", Activity.COLLECTIVE),
    (r"torch/(_dynamo|_inductor)/.*\.py$", r".*compile.*|transform|convert_frame.*|trace.*", Activity.COMPILE),
    (r"/multiprocessing/(popen_fork|popen_spawn_posix|process)\.py$", r"wait|poll|join", Activity.CHILD),
    (r"/subprocess\.py$", r"wait|_wait|_try_wait|communicate|_communicate", Activity.CHILD),
    (r"/threading\.py$", r"_wait_for_tstate_lock|join", Activity.JOIN),
    (r"/threading\.py$", r"_shutdown", Activity.EXIT),
    (r"/multiprocessing/pool\.py$", r".*", Activity.CHILD),
    (r"/(queue|multiprocessing/queues)\.py$", r"get|put", Activity.QUEUE),
    (r"/threading\.py$", r"wait|wait_for", Activity.EVENT),
    (r"/threading\.py$", r"acquire|__enter__", Activity.LOCK),
    (r"/concurrent/futures/\w+\.py$", r"result|exception|wait|as_completed|shutdown|__exit__", Activity.FUTURE),
    (r"/filelock/\w+\.py$", r".*", Activity.FILE_LOCK),
    (r"/asyncio/\w+\.py$", r"run|run_until_complete|run_forever|_run_once", Activity.LOOP),
    (r"/(pdb|bdb|cmd)\.py$", r".*", Activity.DEBUGGER),
    (r"/multiprocessing/connection\.py$", r".*", Activity.READ),
    (r"/(socket|ssl)\.py$", r".*", Activity.READ),
]
_KNOWN = [(re.compile(file), re.compile(func), activity) for file, func, activity in _FRAMES]
#: Worth telling where it is further out than the job's own code.
_CONTEXTS = {Activity.DATA, Activity.SAVE, Activity.LOAD, Activity.COMPILE, Activity.EXIT}
#: What the innermost line calls, where that is in C.
_LINES = [
    (re.compile(r"\bsleep\("), Activity.SLEEP),
    (re.compile(r"\bstore\.(get|wait|add|set|check|compare_set|multi_get)\("), Activity.STORE),
    (re.compile(r"\.acquire\(|^\s*with \w*lock\w*|\block\b.*:$", re.IGNORECASE), Activity.LOCK),
    (re.compile(r"\bos\.wait|\bwaitpid\("), Activity.CHILD),
    (re.compile(r"\.wait\("), Activity.COLLECTIVE),  # torch's Work; all others have frames of Python
    (re.compile(r"\binput\("), Activity.INPUT),
    (re.compile(r"\.(read|readline|recv|recv_into)\(|\bos\.read\(|\bopen\("), Activity.READ),
]
_WITH = re.compile(r"^\s*(async )?with\b")
#: System calls that tell it as well.
_CALLS = {
    **dict.fromkeys(("clock_nanosleep", "nanosleep"), Activity.SLEEP),
    **dict.fromkeys(("read", "readv", "pread64", "preadv", "recvfrom", "recvmsg"), Activity.READ),
    **dict.fromkeys(("wait4", "waitid"), Activity.CHILD),
    **dict.fromkeys(("flock", "fcntl"), Activity.FILE_LOCK),
}
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+\w*/|^<frozen|^<probe>|/probe_agent/recorder/|^$")


def doing(stacks: Backtrace | None, *, state: str = "", is_silent: bool = False) -> Doing:
    """Return the activity of a living rank with these stacks. `state` is what the kernel says of its process; a thread
    that holds the GIL while its recorder is silent keeps it."""
    thread = trains(stacks) if stacks is not None else None
    if thread is None:
        return Doing(Activity.STOPPED if state.startswith("stopped") else Activity.UNKNOWN)
    return activity_of(thread, state=state, is_silent=is_silent)


def activity_of(thread: ThreadStack, *, state: str = "", is_silent: bool = False) -> Doing:
    """Return the activity of one thread."""
    frame = job_frame(thread.frames)
    state, kernel = thread.state or state, thread.kernel
    if state.startswith("stopped"):
        return Doing(Activity.STOPPED, frame, kernel=kernel)
    library, job = _split(thread.frames)
    context = next((activity for each in job if (activity := _of_frame(each)) in _CONTEXTS), None)
    if state == "waiting for a disk":
        known = next((activity for each in library if (activity := _of_frame(each)) in _CONTEXTS), None)
        return Doing(Activity.DISK, frame, within=known or context, kernel=kernel)
    if not thread.frames:
        return Doing(Activity.UNKNOWN, detail=kernel, kernel=kernel)
    found = [(each, activity) for each in library if (activity := _of_frame(each)) is not None]
    each, activity = found[-1] if found else (None, None)  # what the job called; the rest is how that is done
    # Much of torch that takes long holds the GIL meanwhile.
    if is_silent and thread.holds_gil and (activity is None or not activity.takes_long):
        return Doing(Activity.GIL, frame, kernel=kernel)
    if each is not None and activity is not None:
        return Doing(activity, frame, "" if activity is Activity.EXIT else _short(each.func), context, kernel)
    return Doing(_of_call(thread), frame, within=context, kernel=kernel)


def _split(frames: Sequence[Frame]) -> tuple[Sequence[Frame], Sequence[Frame]]:
    """The library's frames that the job's innermost one has called, and the rest."""
    first = next((at for at, frame in enumerate(frames) if not _LIBRARY.search(frame.file)), len(frames))
    return frames[:first], frames[first:]


def has_moved(before: Backtrace | None, after: Backtrace | None) -> bool | None:
    """Whether the thread that trains was elsewhere a moment ago; None where that is not known."""
    first, second = (trains(stacks) if stacks is not None else None for stacks in (before, after))
    if first is None or second is None or not first.frames or not second.frames:
        return None
    # A loop that goes round in one function, on whatever line, has not moved.
    return [(frame.func, frame.file) for frame in first.frames] != [
        (frame.func, frame.file) for frame in second.frames
    ] or [frame.lineno for frame in first.frames[1:]] != [frame.lineno for frame in second.frames[1:]]


def is_job(frame: Frame) -> bool:
    """Return whether it is the job's own code."""
    return bool(frame.lineno) and not _LIBRARY.search(frame.file)


def job_frame(frames: Sequence[Frame]) -> str | None:
    """`evaluate (train.py:88)`: of a stack, innermost frame first, the first one of the job's own code."""
    return next((place(frame) for frame in frames if is_job(frame)), None)


def place(frame: Frame) -> str:
    """`evaluate (train.py:88)`."""
    return f"{_short(frame.func)} ({frame.file.rpartition('/')[2]}:{frame.lineno})"


def trains(stacks: Backtrace) -> ThreadStack | None:
    """Return the thread that trains, the main thread where that is not known."""
    threads = [thread for thread in stacks.threads if not thread.is_probe]
    return next(
        (thread for thread in threads if thread.is_training),
        next((thread for thread in threads if thread.is_main), None),
    )


def _of_frame(frame: Frame) -> Activity | None:
    for file, func, activity in _KNOWN:
        if file.search(frame.file) and func.fullmatch(_short(frame.func)):
            return activity
    return None


def _of_call(thread: ThreadStack) -> Activity:
    """Return what the C function does that the innermost line may have called: by that line, or by its system call."""
    source = thread.frames[0].source or ""
    if _CALLS.get(thread.syscall or "") is Activity.CHILD:
        return Activity.CHILD
    for line, activity in _LINES:
        if line.search(source):
            return activity
    if thread.syscall == "futex" and _WITH.match(source):
        return Activity.LOCK
    is_waiting = thread.state is not None and thread.state != "running"
    return _CALLS.get(thread.syscall or "", Activity.NATIVE if is_waiting else Activity.PYTHON)


def _short(func: str) -> str:
    return func.rpartition(".")[2]
