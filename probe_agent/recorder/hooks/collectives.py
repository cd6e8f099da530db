"""When each collective was started and how long somebody waited for it: `python.collectives`.

Runs on the threads that call collectives: some clock reads, a look at the first tensor and a list append. Every way
from Python to a collective, also by a reference that was imported long ago, ends in a method of `ProcessGroup`, and
waiting for one in `Work.wait`; so those are what we stand in for, and nothing of torch.distributed itself, which
Dynamo would see.

What C++ calls itself (DDP's reducer, functional collectives) does not come by. Our own thread takes it from Flight
Recorder: when it was called and whether it is over, not how long it took. A look takes up to 35 ms
under the GIL, so there is none unless the groups have counted more than Python has called.
"""

from __future__ import annotations

import functools
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns, time_ns
from typing import Any
from weakref import ref

from .. import flight_recorder
from ..collective_groups import Group, Groups
from ..ring.table import NULL_FLOAT, Column, Table
from ..source import Recorder
from ..source import Source as BaseSource

__all__ = ["Collectives", "Source"]

#: Methods of ProcessGroup: what the operation is called, and which argument is what this rank puts in (for those
#: that only get something, what they get). Those a torch does not have are left out.
METHODS = {
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("all_reduce", 0),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
    "allgather": ("all_gather", 1),
    "_allgather_base": ("all_gather", 1),
    "all_gather_single": ("all_gather", 1),
    "allgather_coalesced": ("all_gather", 1),
    "allgather_into_tensor_coalesced": ("all_gather", 1),
    "all_gather_single_coalesced": ("all_gather", 1),
    "reduce_scatter": ("reduce_scatter", 1),
    "_reduce_scatter_base": ("reduce_scatter", 1),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 1),
    "alltoall": ("all_to_all", 1),
    "alltoall_base": ("all_to_all", 1),
    "all_to_all_single": ("all_to_all", 1),
    "gather": ("gather", 1),
    "scatter": ("scatter", 0),
    "send": ("send", 0),
    "recv": ("recv", 0),
    "recv_anysource": ("recv", 0),
    "barrier": ("barrier", None),
    "monitored_barrier": ("monitored_barrier", None),
    "_end_coalescing": ("coalesced", None),
}
#: Their numbers are not the same on all ranks of the group.
P2P = ("send", "recv")
#: Who waits so soon after the call may have come a little later than its end: near enough.
AT_ONCE_NS = 100_000
#: A collective that has taken so long gets a row before it is over.
LONG_NS = 1_000_000_000
#: Calls that may wait for our thread; of more than that no note is taken.
MAX_CALLS = 100_000
#: Different shapes whose text is kept: the names of a ring are never thrown away.
MAX_SHAPES = 2_000
#: How much of the time may go into looks at Flight Recorder, and how much when entries would be lost otherwise.
LOOK_SHARE, LOOK_SHARE_IN_NEED = 0.002, 0.01
LOOK_INTERVAL_NS = 1_000_000_000
#: Torch takes 14 µs for each tensor of each entry. Where the job's calls have so many in 2,000, there are no looks.
MAX_TENSORS = 10_000
#: Half of what torch keeps: so many since the last look, and we hurry.
MANY_SINCE_LOOK = 1_000


class Collectives(Table):
    name = "python.collectives"
    doc = "One row for each collective and each send and receive; object collectives show as those they are made of."
    capacity = 65_536
    columns = (
        Column("step", "int", "", "number of the step in which it was called"),
        Column("ts", "time", "UTC", "when it was over as far as is known, else when the row was made"),
        Column("group", "text", "", "name of its process group; torch.process_groups has the group's ranks"),
        Column("seq", "int", "", "its number in the group, the same on all ranks; -1 for send and recv"),
        Column("op", "text", "", "all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, send, barrier, …"),
        Column(
            "bytes",
            "int",
            "bytes",
            "what this rank put in (sparse tensors as if dense); of recv and scatter what it got",
        ),
        Column("dtype", "text", "", "type of the first of these tensors"),
        Column("shape", "text", "", "shape of the first of them; +2 says that there are two more"),
        Column("start", "time", "UTC", "when it was called"),
        Column(
            "duration",
            "float",
            "s",
            "from its start until it was complete; NULL where it completed unobserved before anybody waited for it,"
            " on a GPU, and for calls made by C++ on gloo",
        ),
        Column("wait", "float", "s", "the calling thread's time inside the call's wait(); NULL for calls made by C++"),
        Column(
            "state",
            "text",
            "",
            "completed, failed, enqueued (the device will do it), launched (nobody has waited for it)"
            " or waiting; a call that takes a second gets a row while it waits, and another when it is over",
        ),
        Column("seen_by", "text", "", "python, or flight recorder where C++ made the call"),
    )


class Call:
    """One collective on its way. Times in nanoseconds of the monotonic clock; 0: not yet."""

    # Of the class, since most calls set few of them: half the time that slots take.
    began = returned = waiting = wait = ended = 0
    #: What the group had counted after the call.
    number = -1
    num_tensors = num_elements = 0
    #: Of the first tensor.
    shape: Any = None
    dtype: Any = None
    on_device = False
    #: It was complete before anybody waited for it.
    overlapped = False
    failed = False
    #: It has a row that says that it takes long.
    told = False
    #: A weak reference to what can be waited for.
    work: Any = None

    def __init__(self, step: int, op: str, group: str) -> None:
        self.step = step
        self.op = op
        self.group = group


class Source(BaseSource):
    name = "collectives"
    needs = (
        "torch",
        "torch.distributed.distributed_c10d",
        "torch._C._distributed_c10d",
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._buffer = recorder.buffer(Collectives)
        self._step = recorder.step
        self._cost = recorder.cost(self.name)
        self._is_compiling = recorder.device.is_compiling
        self._patched: list[tuple[Any, str, Any, Any]] = []
        self._calls: list[Call] = []
        #: Calls whose work somebody may wait for, by the work's id.
        self._open: dict[int, Call] = {}
        self._unfinished: list[Call] = []
        self._groups = Groups()
        self._num_tensors: deque[int] = deque(maxlen=2_000)
        self._was_unseen = False
        self._look_at = self._look_in_need = 0
        self._shapes: set[str] = set()
        self._steps: deque[tuple[int, int]] = deque(maxlen=4_096)

    def start(self) -> None:
        self._groups.refresh()
        self._step.beginning.append(self._note_step)
        c10d: Any = sys.modules["torch._C._distributed_c10d"]
        for name, (op, payload_at) in METHODS.items():
            if name in c10d.ProcessGroup.__dict__:
                self._patch(c10d.ProcessGroup, name, functools.partial(self._noted, op=op, payload_at=payload_at))
        self._patch(c10d.Work, "wait", self._timed_wait)

    def stop(self) -> None:
        if self._note_step in self._step.beginning:
            self._step.beginning.remove(self._note_step)
        for owner, name, descriptor, ours in self._patched:
            if owner.__dict__.get(name) is ours:
                setattr(owner, name, descriptor)
        self._patched.clear()
        self._write_calls()
        self._open.clear()

    def _patch(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        ours = make(original)
        functools.update_wrapper(ours, original)
        self._patched.append((owner, name, owner.__dict__[name], ours))
        setattr(owner, name, ours)

    def _note_step(self) -> None:
        self._steps.append((self._step.started, self._step.number))

    # On the thread that calls.

    def _noted(self, original: Any, op: str, payload_at: int | None) -> Any:
        def noted(group: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_compiling():
                return original(group, *args, **kwargs)
            call = self._begin(op, group, None if payload_at is None else args[payload_at : payload_at + 1])
            try:
                work = original(group, *args, **kwargs)
            except BaseException:
                if call is not None:
                    call.failed = True
                    call.ended = call.returned = perf_counter_ns()
                raise
            if call is not None:
                self._launched(call, group, work)
            return work

        return noted

    def _begin(self, op: str, group: Any, payload: tuple[Any, ...] | None) -> Call | None:
        if len(self._calls) >= MAX_CALLS or not self._patched:
            return None  # detached: the job has kept a bound method of ours
        began = perf_counter_ns()
        try:
            call = Call(self._step.number, op, group.group_name)
            if payload:
                tensors = payload[0]
                if tensors.__class__ is list:
                    if tensors and tensors[0].__class__ is list:
                        tensors = tensors[0]
                    first = tensors[0] if tensors else None
                    call.num_tensors = len(tensors)
                    call.num_elements = sum([tensor.numel() for tensor in tensors])
                else:
                    first = tensors
                    call.num_tensors, call.num_elements = 1, first.numel()
                if first is not None:
                    call.shape, call.dtype = first.shape, first.dtype
                    if not first.is_cpu:
                        call.on_device = True
            elif op == "coalesced":
                call.on_device = True
            self._calls.append(call)
            call.began = perf_counter_ns()
            self._cost.calls += 1
            self._cost.ns += call.began - began
            return call
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise
            return None

    def _launched(self, call: Call, group: Any, work: Any) -> None:
        now = perf_counter_ns()
        try:
            if work is None:
                call.ended, call.wait = now, now - call.began
            else:
                call.work = ref(work)
                self._open[id(work)] = call
            call.number = _number(group)
            call.returned = now
            self._cost.ns += perf_counter_ns() - now
        except Exception as error:
            call.returned = now
            if self.recorder.fail(self.name, error):
                raise

    def _timed_wait(self, original: Any) -> Any:
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            call = None if self._is_compiling() else self._open.pop(id(work), None)
            if call is None or call.work() is not work:
                return original(work, *args, **kwargs)
            call.waiting = perf_counter_ns()
            if call.waiting - call.returned > AT_ONCE_NS and not call.on_device:
                call.overlapped = self._is_completed(work)
                call.waiting = perf_counter_ns()
            try:
                return original(work, *args, **kwargs)
            except BaseException:
                call.failed = True
                raise
            finally:
                call.ended = perf_counter_ns()
                call.wait = call.ended - call.waiting

        return wait

    def _is_completed(self, work: Any) -> bool:
        try:
            return bool(work.is_completed())
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise
            return False

    # On our own thread.

    def tick(self) -> None:
        """Calls that are over become rows, and now and then those that only Flight Recorder saw."""
        self._take_calls()
        if self._is_time_to_look():
            self._look()
        self._write_calls()

    def _take_calls(self) -> None:
        calls = self._calls[:]
        del self._calls[: len(calls)]
        self._unfinished += calls
        self._num_tensors.extend([call.num_tensors for call in calls])
        self._groups.refresh()  # now, so that each call's group is known
        for call in self._unfinished:
            if call.number >= 0 and call.group in self._groups:
                self._groups[call.group].called(call.number, call.op in P2P)

    def _is_time_to_look(self) -> bool:
        """A look at Flight Recorder stops the job's Python for up to 35 ms, so it has to be worth it."""
        now = perf_counter_ns()
        if sum(self._num_tensors) > MAX_TENSORS:
            return False
        names = {call.group for call in self._unfinished if call.number >= 0 and call.op not in P2P}
        if any(name in self._groups and not self._groups[name].is_anchored for name in names):
            return True  # once a group, if at all: its numbers are not known yet
        on_their_way = len(self._calls) + sum(not call.returned for call in self._unfinished)
        num_unseen = sum(group.num_unseen() for group in self._groups.values()) - on_their_way
        has_late = any(group.late for group in self._groups.values())
        was_unseen, self._was_unseen = self._was_unseen, num_unseen > 0
        if num_unseen > 0 and sum(group.num_since_look for group in self._groups.values()) > MANY_SINCE_LOOK:
            return now >= self._look_in_need
        return now >= self._look_at and (has_late or (was_unseen and num_unseen > 0))

    def _look(self) -> None:
        """Learn from Flight Recorder how groups number their collectives, and write what Python did not see."""
        began = perf_counter_ns()
        dumps = list(flight_recorder.dumps(with_entries=True))
        now = perf_counter_ns()
        self._look_at = now + max(LOOK_INTERVAL_NS, round((now - began) / LOOK_SHARE))
        self._look_in_need = now + round((now - began) / LOOK_SHARE_IN_NEED)
        self._was_unseen = False
        self._take_calls()
        epoch = time_ns() - perf_counter_ns()
        #: What C++ was given after this moment may belong to a call that has not come back yet.
        limit = min([call.began for call in self._unfinished if not call.returned] or [began]) + epoch
        entries = [
            (entry, self._groups[entry["process_group"][0]])
            for dump in dumps
            for entry in dump["entries"]
            if not entry.get("is_p2p") and entry["process_group"][0] in self._groups
        ]
        for entry, group in entries:
            group.learn(entry["op_id"], entry["collective_seq_id"])
        for call in self._unfinished:
            if call.group in self._groups:
                self._groups[call.group].wrote(self._seq(call))
        for entry, group in entries:
            if group.since_ns <= entry["time_created_ns"] < limit and entry["collective_seq_id"] not in group.written:
                self._write_unseen(entry, group, began, epoch)
        for group in self._groups.values():
            group.looked()

    def _seq(self, call: Call) -> int:
        if call.op in P2P or call.number < 0:
            return -1
        return self._groups[call.group].seq(call.number) if call.group in self._groups else call.number

    def _write_calls(self) -> None:
        """Rows of what is over; what has taken long gets one as well, and stays."""
        now = perf_counter_ns()
        epoch = time_ns() - now
        unfinished: list[Call] = []
        for call in self._unfinished:
            if call.ended or _is_dropped(call):
                self._write_call(call, now, epoch)
                continue
            unfinished.append(call)
            if not call.told and now - call.began > LONG_NS:
                call.told = True
                self._write_call(call, now, epoch)
        self._unfinished = unfinished
        for key, call in list(self._open.items()):
            if _is_dropped(call):
                self._open.pop(key, None)

    def _write_call(self, call: Call, now: int, epoch: int) -> None:
        seq = self._seq(call)
        if call.group in self._groups:
            self._groups[call.group].wrote(seq)
        is_known = bool(call.ended) and not call.on_device and not call.overlapped
        self._row(
            step=call.step,
            ts=call.ended or now,
            group=call.group,
            seq=seq,
            op=call.op,
            num_bytes=0 if call.dtype is None else call.num_elements * call.dtype.itemsize,
            dtype=str(call.dtype).rpartition(".")[2] if call.dtype is not None else None,
            shape=flight_recorder.shape_text(call.shape, call.num_tensors) if call.shape is not None else None,
            start=call.began,
            duration=(call.ended - call.began) * 1e-9 if is_known else NULL_FLOAT,
            wait=call.wait * 1e-9 if call.ended else NULL_FLOAT,
            state=_state(call),
            seen_by="python",
            epoch=epoch,
        )

    def _write_unseen(self, entry: dict[str, Any], group: Group, now: int, epoch: int) -> None:
        told = flight_recorder.describe(entry)
        seq, start, duration = told["seq"], entry["time_created_ns"] - epoch, told["duration"]
        is_over = told["state"] in ("completed", "failed")
        is_told = group.late.pop(seq, False)
        if is_over:
            group.wrote(seq)
        else:
            group.late[seq] = is_told or now - start > LONG_NS
            if is_told or not group.late[seq]:
                return
        self._row(
            step=self._step_at(start),
            ts=now if told["completed"] is None else told["completed"] * 1000 - epoch,
            group=group.name,
            seq=seq,
            op=told["op"],
            num_bytes=told["bytes"],
            dtype=told["dtype"],
            shape=told["shape"],
            start=start,
            duration=NULL_FLOAT if duration is None else duration,
            wait=NULL_FLOAT,
            state=told["state"] if is_over else "launched",
            seen_by="flight recorder",
            epoch=epoch,
        )

    def _step_at(self, when: int) -> int:
        """The step that was being taken at `when`."""
        steps = list(self._steps)
        at = bisect_right(steps, (when, sys.maxsize)) - 1
        return steps[at][1] if at >= 0 else self._step.number if not steps else steps[0][1] - 1

    def _row(
        self,
        *,
        step: int,
        ts: int,
        group: str,
        seq: int,
        op: str,
        num_bytes: int,
        dtype: str | None,
        shape: str | None,
        start: int,
        duration: float,
        wait: float,
        state: str,
        seen_by: str,
        epoch: int,
    ) -> None:
        if shape is not None and shape not in self._shapes:
            if len(self._shapes) < MAX_SHAPES:
                self._shapes.add(shape)
            else:
                shape = None
        number = self._buffer.number
        self._buffer.rows.append(
            (
                step,
                (ts + epoch) // 1000,
                number(group),
                seq,
                number(op),
                num_bytes,
                number(dtype),
                number(shape),
                (start + epoch) // 1000,
                duration,
                wait,
                number(state),
                number(seen_by),
            )
        )


def _number(group: Any) -> int:
    """What the group has counted so far; -1 where its backend does not count."""
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:
        return -1


def _is_dropped(call: Call) -> bool:
    """Nobody can wait for it any more."""
    return bool(call.returned) and not call.ended and (call.work is None or call.work() is None)


def _state(call: Call) -> str:
    if call.failed:
        return "failed"
    if call.ended:
        return "enqueued" if call.on_device else "completed"
    return "waiting" if call.waiting or not call.returned else "launched"
