"""Profile of a number of steps for `probe … profile`: sums per operator for `python.profile_ops`, and a trace.

The training thread pays the cost of torch's profiler (steps/profiler.py). Afterwards a thread of the recorder takes
about 10 µs of CPU time per event to sum the operators up; saving the trace holds the GIL for 1.5 µs per event, since
torch does that in one call. The trace file is unlinked as soon as it is open.
"""

from __future__ import annotations

import base64
import os
from _thread import allocate_lock
from collections.abc import Iterator, Mapping
from time import monotonic, time_ns
from typing import Any, BinaryIO

from ..control.reply import Reply
from ..ring.table import MIB, NULL_FLOAT, Column, Table
from ..source import Recorder
from ..steps.profiler import StepsProfile
from ..torch import loaded

__all__ = ["ProfileOps", "stream"]

MAX_STEPS = 100
POLL_S = 0.05
TRACE = "trace.json"
CHUNK_BYTES = 768 << 10
#: A trace takes 260 bytes per event, 400 with shapes; the space per event that must be free where it is written.
ROOM_BYTES = 2048
_one_at_a_time = allocate_lock()
_num_profiles = 0


class ProfileOps(Table):
    name = "python.profile_ops"
    doc = "Results of `probe … profile`: one row per operator (or kernel) and profile, summed over its steps."
    capacity = 16_384
    filled_by = "probe … profile --steps 3"
    columns = (
        Column("step", "int", "", "first profiled step"),
        Column("ts", "time", "UTC", "end of the profile"),
        Column("profile", "int", "", "number of the profile, counted from 1"),
        Column("steps", "int", "", "number of profiled steps, which the sums cover"),
        Column("name", "text", "", "name of the operator or kernel"),
        Column("input_shapes", "text", "", "shapes of the operator's arguments; NULL unless requested"),
        Column("device", "text", "", "where it runs: cpu for operators, including those that launch kernels"),
        Column("calls", "int", "", "number of calls"),
        Column("self_cpu_time", "float", "s", "CPU time without the operators it calls"),
        Column("cpu_time", "float", "s", "CPU time including the operators it calls"),
        Column("self_device_time", "float", "s", "time of the kernels it launched itself, or of the kernel"),
        Column("device_time", "float", "s", "time of all kernels launched by it and the operators it calls"),
        Column("self_cpu_memory", "float", "MiB", "memory it allocated minus memory it freed; NULL unless requested"),
        Column("cpu_memory", "float", "MiB", "the same including the operators it calls"),
        Column("self_device_memory", "float", "MiB", "the same on the device, by itself; NULL unless requested"),
        Column("device_memory", "float", "MiB", "the same on the device, including the operators it calls"),
    )


class _Sums:
    __slots__ = ("calls", "cpu", "cpu_memory", "device", "device_memory", "own_cpu", "own_cpu_memory", "own_device",
                 "own_device_memory")  # fmt: skip

    def __init__(self) -> None:
        self.calls = self.cpu = self.own_cpu = self.device = self.own_device = 0
        self.cpu_memory = self.own_cpu_memory = self.device_memory = self.own_device_memory = 0


def stream(recorder: Recorder, request: Mapping[str, Any], reply: Reply) -> Mapping[str, object]:
    """Profile, then send the operators, the trace and a summary."""
    num_steps, timeout = request.get("steps"), request.get("timeout")
    if not isinstance(num_steps, int) or not 1 <= num_steps <= MAX_STEPS:
        return _error(f"invalid number of steps {num_steps!r}", f"use 1 to {MAX_STEPS}")
    if not isinstance(timeout, (int, float)) or not timeout > 0:
        return _error(f"invalid timeout {timeout!r}", "use a number of seconds above 0")
    if loaded("torch.profiler") is None:
        return _error("cannot profile: the target has not imported torch", "use a target that has: probe list")
    if not _one_at_a_time.acquire(False):
        return _error("this target is already being profiled", "try again when that profile has ended")
    shapes, memory = bool(request.get("shapes")), bool(request.get("memory"))
    profile = StepsProfile(recorder.at_step, recorder.step, num_steps, shapes, memory, recorder.fail)
    try:
        with recorder.step.traced_by("profile"):
            recorder.at_step.submit(profile)
            refusal = _wait(profile, recorder, reply, float(timeout), num_steps)
        if refusal is not None:
            return refusal
        _send_operators(profile, recorder, reply, shapes, memory)
        notes = [f"starting and stopping the profiler paused the job for {profile.paused_s * 1e3:.0f} ms"]
        if request.get("trace"):
            notes += _send_trace(profile, recorder.folder, reply)
        return {"state": "finished", "step": profile.first_step, "steps": profile.num_seen, "notes": notes}
    finally:
        profile.profiler = None
        _one_at_a_time.release()


def _wait(
    profile: StepsProfile, recorder: Recorder, reply: Reply, timeout_s: float, num_steps: int
) -> Mapping[str, object] | None:
    """Wait for the steps. Return None if all were seen, else the error; the profiler is off in either case."""
    queue, deadline = recorder.at_step, monotonic() + timeout_s
    while not profile.wait(POLL_S):
        if not (reply.cancelled() or monotonic() >= deadline or queue.closed):
            continue
        profile.cancelled = True
        if not profile.is_running and queue.withdraw(profile):
            return _error(
                f"nothing was profiled: no step ended within {timeout_s:g} s; the last step was {queue.last_step()}",
                "see where it is: probe … backtrace; or wait longer: --timeout SECONDS",
            )
        seen = profile.num_seen
        while not profile.wait(POLL_S):
            if queue.closed:
                break
        if monotonic() < deadline:
            return _error(f"the recorder was detached after {seen} of {num_steps} steps", "attach and profile again")
        return _error(f"{seen} of {num_steps} steps ended within {timeout_s:g} s", "wait longer: --timeout SECONDS")
    if profile.problem:
        return _error(
            f"{profile.num_seen} of {num_steps} steps were profiled: {profile.problem}"
            if profile.profiler is not None
            else f"nothing was profiled: {profile.problem}",
            "try again later",
        )
    return None


def _send_operators(profile: StepsProfile, recorder: Recorder, reply: Reply, shapes: bool, memory: bool) -> None:
    global _num_profiles
    _num_profiles += 1
    events = profile.profiler.profiler.kineto_results.events()
    buffer = recorder.buffer(ProfileOps)
    head = (profile.first_step, time_ns() // 1000, _num_profiles, profile.num_seen)
    rows: list[list[Any]] = []
    for (name, shape, device), sums in _sum_up(events, shapes).items():
        times = [part * 1e-9 for part in (sums.own_cpu, sums.cpu, sums.own_device, sums.device)]
        held = (sums.own_cpu_memory, sums.cpu_memory, sums.own_device_memory, sums.device_memory)
        sizes = [part / MIB if memory else None for part in held]
        rows.append([name, shape, device, sums.calls, *times, *sizes])
        encoded = [NULL_FLOAT if size is None else size for size in sizes]
        number = buffer.number
        buffer.rows.append((*head, number(name), number(shape), number(device), sums.calls, *times, *encoded))
    recorder.write_out(buffer)  # whoever has the answer may query the table
    rows.sort(key=lambda row: (row[6], row[4]), reverse=True)
    reply.send({"columns": [column.name for column in ProfileOps.columns[4:]], "rows": rows})


def _sum_up(events: list[Any], shapes: bool) -> dict[tuple[str, str | None, str], _Sums]:
    """Return for each operator its calls, and its time and memory with and without the operators that it calls."""
    found: dict[tuple[str, str | None, str], _Sums] = {}
    on_device: dict[int, int] = {}
    spans = []
    for event in events:
        name = event.name()
        kind = event.device_type().name.lower()
        start = event.start_ns()
        if name == "[memory]":
            spans.append((event.start_thread_id(), start, 1, event, kind))
        elif kind == "cpu":
            spans.append((event.start_thread_id(), start, -event.duration_ns(), event, kind))
        elif not event.is_user_annotation():
            duration, cause = event.duration_ns(), event.linked_correlation_id()
            sums = found.setdefault((name, None, kind), _Sums())
            sums.calls += 1
            sums.own_device += duration
            sums.device += duration
            on_device[cause] = on_device.get(cause, 0) + duration
    for span in _tree(spans):
        event, above = span.event, list(span.above())
        shape = str(event.shapes()) if shapes and event.shapes() else None
        sums = span.sums = found.setdefault((span.name, shape, "cpu"), _Sums())
        sums.calls += 1
        sums.cpu += span.duration
        sums.own_cpu += span.duration
        if above:
            above[0].sums.own_cpu -= span.duration
        kernels = on_device.get(event.correlation_id(), 0)
        sums.own_device += kernels
        sums.own_cpu_memory += span.memory.get("cpu", 0)
        sums.own_device_memory += sum(size for kind, size in span.memory.items() if kind != "cpu")
        for one in (span, *above):
            one.sums.device += kernels
            one.sums.cpu_memory += span.memory.get("cpu", 0)
            one.sums.device_memory += sum(size for kind, size in span.memory.items() if kind != "cpu")
    return found


class _Span:
    """A call of an operator."""

    __slots__ = ("duration", "end", "event", "memory", "name", "num_below", "parent", "sums", "thread")

    def __init__(self, event: Any, thread: int, end: int, duration: int, parent: _Span | None) -> None:
        self.event = event
        self.name: str = event.name()
        self.thread = thread
        self.end = end
        self.duration = duration
        self.parent = parent
        self.num_below = 0
        self.memory: dict[str, int] = {}
        self.sums: Any = None

    def above(self) -> Iterator[_Span]:
        """Yield the calls around this one, innermost first."""
        above = self.parent
        while above is not None:
            yield above
            above = above.parent


def _tree(spans: list[tuple[int, int, int, Any, str]]) -> list[_Span]:
    """Return the calls of each thread in order, callers before their callees.

    As in torch's own sums, an operator that only calls an operator of the same name is merged with it.
    """
    spans.sort(key=lambda span: span[:3])
    calls: list[_Span] = []
    top: _Span | None = None
    for thread, start, negative, event, kind in spans:
        while top is not None and (top.thread != thread or top.end <= start):
            top = top.parent
        if negative == 1:
            if top is not None:
                top.memory[kind] = top.memory.get(kind, 0) + event.nbytes()
            continue
        call = _Span(event, thread, start - negative, -negative, top)
        calls.append(call)
        if not event.is_async():
            if top is not None:
                top.num_below += 1
            top = call
    kept: list[_Span] = []
    one_with: dict[int, _Span] = {}
    for call in calls:
        parent = call.parent
        call.parent = parent = None if parent is None else one_with.get(id(parent), parent)
        if parent is not None and parent.name == call.name and parent.num_below == 1:
            one_with[id(call)] = parent
            parent.num_below = call.num_below
            for kind, size in call.memory.items():
                parent.memory[kind] = parent.memory.get(kind, 0) + size
        else:
            kept.append(call)
    return kept


def _send_trace(profile: StepsProfile, folder: str, reply: Reply) -> list[str]:
    """Send the trace in pieces; return a note if there is no room for it."""
    free = os.statvfs(folder)
    if free.f_bavail * free.f_frsize < ROOM_BYTES * len(profile.profiler.profiler.kineto_results.events()):
        return [f"no trace was written: not enough space in {folder}"]
    with _saved(profile, os.path.join(folder, TRACE)) as file:
        while True:
            piece = file.read(CHUNK_BYTES)
            if not piece:
                return []
            reply.send({"trace": base64.b64encode(piece).decode("ascii")})


def _saved(profile: StepsProfile, path: str) -> BinaryIO:
    """Return the trace as an open, unlinked file."""
    try:
        profile.profiler.export_chrome_trace(path)
        return open(path, "rb")
    finally:
        for name in (path, path + ".tmp"):
            if os.path.exists(name):
                os.unlink(name)


def _error(message: str, hint: str) -> Mapping[str, object]:
    return {"error": {"message": message, "hint": hint}}
