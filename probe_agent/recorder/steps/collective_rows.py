"""Rows of `python.collectives` from the calls that Python made and the operations that C++ started by itself.

Operations that C++ starts, as DDP's reducer does, have no call in Python. They are taken from Flight Recorder: when
they were called and whether they are over, not how long they took. Reading it takes up to 35 ms under the GIL, so it
is read only if the groups have counted more operations than Python has called. Runs on the recorder's thread.
"""

from __future__ import annotations

import sys
from collections import deque
from time import perf_counter_ns
from typing import Any, NamedTuple

from ..guest.epoch import epoch_ns
from ..ring.buffer import RowBuffer
from ..ring.table import NULL_FLOAT, NULL_INT
from ..torch import flight_recorder, loaded
from ..torch.collective_groups import Group, Groups
from .phase_spans import BACKWARD
from .step import Step

__all__ = ["ANY_SOURCE", "AT_ONCE_NS", "P2P", "Call", "CollectiveRows"]

#: Operations whose numbers differ between the ranks of a group.
P2P = ("send", "recv")
#: Peer of a receive from any rank.
ANY_SOURCE = -1
#: A wait this soon after the call counts as immediate.
AT_ONCE_NS = 100_000
#: A collective that has taken this long gets a row before it is over.
LONG_NS = 1_000_000_000
#: A tensor that has not been waited for within this time never will be.
UNWAITED_NS = 60_000_000_000
#: Longest time, and number, that rows of finished operations wait for their phase to be known.
PHASE_NS, MAX_WITHOUT_PHASE = 10_000_000_000, 20_000
#: Distinct shapes with a text: the texts of a ring are never dropped.
MAX_SHAPES = 2_000
#: Share of the time for reading Flight Recorder, and the share if entries would be lost otherwise, or the job stands.
LOOK_SHARE, LOOK_SHARE_IN_NEED = 0.002, 0.01
LOOK_INTERVAL_NS = 1_000_000_000
#: Without a new operation for this long, what the groups stand in is read at once: the job may end there.
STANDSTILL_NS = 5_000_000_000
#: torch takes 14 µs per tensor of an entry. Flight Recorder is not read if 2,000 calls of the job have more tensors.
MAX_TENSORS = 10_000
#: Operations since the last read that make the next one urgent: half of what torch keeps.
MANY_SINCE_LOOK = 1_000


class Call:
    """A running collective. Times in nanoseconds of the monotonic clock; 0 means not yet."""

    # On the class, since most calls set few of them: half the time of slots.
    began = returned = waiting = wait = ended = 0
    #: Number that the group had counted after the call.
    number = -1
    num_tensors = num_elements = 0
    #: Of the first tensor.
    shape: Any = None
    dtype: Any = None
    on_device = False
    #: It was complete before anything waited for it.
    overlapped = False
    failed = False
    #: It has a row as one that takes long.
    told = False
    #: Called as an operator, which returns a tensor to wait for; nothing shows when that is dropped.
    by_operator = False
    #: Weak reference to the work to wait for.
    work: Any = None
    #: Of a send or receive: rank in the group of the other side; ANY_SOURCE until it is known.
    peer: int | None = None

    def __init__(self, step: int, op: str, group: str, thread: int) -> None:
        self.step = step
        self.op = op
        self.group = group
        self.thread = thread


class Row(NamedTuple):
    """A row that may wait for its phases to be known. Times are of the monotonic clock."""

    step: int
    ts: int
    group: str
    seq: int
    op: str
    peer: int
    num_bytes: int
    dtype: str | None
    shape: str | None
    start: int
    duration: float
    #: Start and duration of the wait for it; 0 and NULL if nothing waited.
    waiting: int
    wait: float
    state: str
    seen_by: str
    #: Calling thread; None if C++ made the call.
    thread: int | None
    is_over: bool


class CollectiveRows:
    """Maker of the rows. The hooks add calls to `calls`; `open_calls` has those that may still be waited for."""

    def __init__(self, buffer: RowBuffer, step: Step, calls: list[Call], open_calls: dict[int, Call]) -> None:
        self._buffer = buffer
        self._step = step
        self._calls = calls
        self._open = open_calls
        self._unfinished: list[Call] = []
        self.groups = Groups()
        self._num_tensors: deque[int] = deque(maxlen=2_000)
        self._was_unseen = False
        self._look_at = self._look_in_need = 0
        #: Operations of all groups, since when there are so many, and whether Flight Recorder has been read since then.
        self._num_enqueued = self._enqueued_at = 0
        self._saw_standstill = True
        self._shapes: set[str] = set()
        #: Rows of finished operations without a phase yet.
        self._without_phase: list[Row] = []

    def make(self) -> None:
        """Write rows of finished calls and, from time to time, of operations that only Flight Recorder has."""
        self._take_calls()
        if self._is_time_to_look():
            self._look()
        self.write_calls()
        self._write_rows(perf_counter_ns())

    def close(self) -> None:
        """Write all rows with what is known."""
        self.write_calls()
        self._write_rows(sys.maxsize)
        self._unfinished.clear()

    def _take_calls(self) -> None:
        calls = self._calls[:]
        del self._calls[: len(calls)]
        self._unfinished += calls
        self._num_tensors.extend([call.num_tensors for call in calls])
        self.groups.refresh()  # after taking the calls, so that the group of each is known
        for call in self._unfinished:
            if call.number >= 0 and call.group in self.groups:
                self.groups[call.group].called(call.number, call.op in P2P)

    def _is_time_to_look(self) -> bool:
        """Return whether to read Flight Recorder, which stops the job's Python for up to 35 ms."""
        now = perf_counter_ns()
        if sum(self._num_tensors) > MAX_TENSORS:
            return False
        if any(name in self.groups and not self.groups[name].is_anchored for name in self._that_called()):
            return True  # at most once per group: its numbers are not known yet
        on_their_way = len(self._calls) + sum(not call.returned for call in self._unfinished)
        num_unseen = sum(group.num_unseen() for group in self.groups.values()) - on_their_way
        has_late = any(group.late for group in self.groups.values())
        was_unseen, self._was_unseen = self._was_unseen, num_unseen > 0
        if self._stands(now) and (num_unseen > 0 or has_late) and now >= self._look_in_need:
            self._saw_standstill = True
            return True
        if num_unseen > 0 and sum(group.num_since_look for group in self.groups.values()) > MANY_SINCE_LOOK:
            return now >= self._look_in_need
        return now >= self._look_at and (has_late or (was_unseen and num_unseen > 0))

    def _that_called(self) -> set[str]:
        """The groups of which Python has called a collective that has no row yet."""
        return {call.group for call in self._unfinished if call.number >= 0 and call.op not in P2P}

    def _stands(self, now: int) -> bool:
        """Return whether the groups stand still, and what they stand in has not been read yet."""
        num_enqueued = sum(group.enqueued for group in self.groups.values())
        if num_enqueued != self._num_enqueued:
            self._num_enqueued, self._enqueued_at, self._saw_standstill = num_enqueued, now, False
        return not self._saw_standstill and now - self._enqueued_at > STANDSTILL_NS

    def _look(self) -> None:
        """Read Flight Recorder: learn the numbers of collectives, and write rows of operations not called from
        Python."""
        began, had_called = perf_counter_ns(), self._that_called()
        dumps = list(flight_recorder.dumps(with_entries=True))
        now = perf_counter_ns()
        self._look_at = now + max(LOOK_INTERVAL_NS, round((now - began) / LOOK_SHARE))
        self._look_in_need = now + round((now - began) / LOOK_SHARE_IN_NEED)
        self._was_unseen = False
        self._take_calls()
        epoch = epoch_ns()
        #: An operation after this moment may belong to a call that has not returned yet.
        limit = min([call.began for call in self._unfinished if not call.returned] or [began]) + epoch
        entries = [
            (entry, self.groups[entry["process_group"][0]])
            for dump in dumps
            for entry in dump["entries"]
            if not entry.get("is_p2p") and entry["process_group"][0] in self.groups
        ]
        for entry, group in entries:
            group.learn(entry["op_id"], entry["collective_seq_id"])
        for call in self._unfinished:
            if call.group in self.groups:
                self.groups[call.group].wrote(self._seq(call))
        for entry, group in entries:
            if group.since_ns <= entry["time_created_ns"] < limit and entry["collective_seq_id"] not in group.written:
                self._write_unseen(entry, group, began, epoch)
        for name, group in self.groups.items():
            group.looked(name in had_called)

    def _seq(self, call: Call) -> int:
        if call.op in P2P or call.number < 0:
            return -1
        return self.groups[call.group].seq(call.number) if call.group in self.groups else call.number

    def write_calls(self) -> None:
        """Make rows of finished calls, and of calls that have taken long, which remain."""
        now = perf_counter_ns()
        unfinished: list[Call] = []
        for call in self._unfinished:
            if call.ended or _is_dropped(call, now):
                self._without_phase.append(self._row_of(call, now, is_over=True))
                continue
            unfinished.append(call)
            if not call.told and now - call.began > LONG_NS:
                call.told = True
                self._without_phase.append(self._row_of(call, now, is_over=False))
        self._unfinished = unfinished
        for key, call in list(self._open.items()):
            if _is_dropped(call, now):
                self._open.pop(key, None)

    def _row_of(self, call: Call, now: int, is_over: bool) -> Row:
        seq = self._seq(call)
        group = self.groups.get(call.group)
        if group is not None:
            group.wrote(seq)
        # Of an operator it is a guess, and wrong if the wait for it took time.
        was_complete = call.overlapped and not (call.by_operator and call.wait > AT_ONCE_NS)
        is_known = bool(call.ended) and not call.on_device and not was_complete
        return Row(
            step=call.step,
            ts=call.ended or now,
            group=call.group,
            seq=seq,
            op=call.op,
            peer=_peer(call, group),
            num_bytes=0 if call.dtype is None else call.num_elements * call.dtype.itemsize,
            dtype=str(call.dtype).rpartition(".")[2] if call.dtype is not None else None,
            shape=flight_recorder.shape_text(call.shape, call.num_tensors) if call.shape is not None else None,
            start=call.began,
            duration=(call.ended - call.began) * 1e-9 if is_known else NULL_FLOAT,
            waiting=call.ended - call.wait if call.ended else call.waiting,
            wait=call.wait * 1e-9 if call.ended else NULL_FLOAT,
            state=_state(call),
            seen_by="python",
            thread=call.thread,
            is_over=is_over,
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
        self._without_phase.append(
            Row(
                step=self._step.spans.step_at(start, self._step.number),
                ts=now if told["completed"] is None else told["completed"] * 1000 - epoch,
                group=group.name,
                seq=seq,
                op=told["op"],
                peer=NULL_INT,
                num_bytes=told["bytes"],
                dtype=told["dtype"],
                shape=told["shape"],
                start=start,
                duration=NULL_FLOAT if duration is None else duration,
                waiting=0,
                wait=NULL_FLOAT,
                state=told["state"] if is_over else "launched",
                seen_by="flight recorder",
                thread=None,
                is_over=is_over,
            )
        )

    def _write_rows(self, now: int) -> None:
        """Write the rows whose phases are known or overdue, and those of unfinished operations."""
        rows = self._without_phase
        if not rows:
            return
        epoch = epoch_ns()
        moments = sorted({moment for row in rows for moment in (row.start, row.waiting) if moment})
        phases = dict(zip(moments, self._step.spans.phases_at(moments)))
        self._without_phase = []
        for at, row in enumerate(rows):
            made, waited = phases[row.start], phases.get(row.waiting, (None, True))
            is_late = now - row.ts > PHASE_NS or len(rows) - at > MAX_WITHOUT_PHASE
            if not row.is_over or is_late or (made[1] and waited[1]):
                self._write(row, epoch, self._phase_of(row, made[0]), self._phase_of(row, waited[0]))
            else:
                self._without_phase.append(row)

    def _phase_of(self, row: Row, phase: str | None) -> str | None:
        """Return `phase` if the row's thread is one that runs the step."""
        if row.thread in (None, self._step.thread) or (phase == BACKWARD and _is_torchs(row.thread)):
            return phase
        return None

    def _write(self, row: Row, epoch: int, phase: str | None, wait_phase: str | None) -> None:
        shape = row.shape
        if shape is not None and shape not in self._shapes:
            if len(self._shapes) < MAX_SHAPES:
                self._shapes.add(shape)
            else:
                shape = None
        number = self._buffer.number
        self._buffer.rows.append(
            (
                row.step,
                (row.ts + epoch) // 1000,
                number(row.group),
                row.seq,
                number(row.op),
                row.peer,
                row.num_bytes,
                number(row.dtype),
                number(shape),
                (row.start + epoch) // 1000,
                row.duration,
                row.wait,
                number(phase),
                number(wait_phase),
                number(row.state),
                number(row.seen_by),
            )
        )


def _is_torchs(thread: int | None) -> bool:
    """Return whether the thread was not started by Python: autograd runs backward on such threads, one per device."""
    threading: Any = loaded("threading")
    found = threading._active.get(thread) if threading is not None else None
    return found is None or isinstance(found, threading._DummyThread)


def _peer(call: Call, group: Group | None) -> int:
    """Return the rank in the job of the other side; NULL if there is none or it is unknown."""
    if call.peer is None or group is None or not 0 <= call.peer < len(group.ranks):
        return NULL_INT
    return group.ranks[call.peer]


def _is_dropped(call: Call, now: int) -> bool:
    """Return whether nothing can wait for the call any more."""
    if call.by_operator:
        return not call.ended and now - call.returned > UNWAITED_NS
    return bool(call.returned) and not call.ended and (call.work is None or call.work() is None)


def _state(call: Call) -> str:
    if call.failed:
        return "failed"
    if call.ended:
        return "enqueued" if call.on_device else "completed"
    return "waiting" if call.waiting or not call.returned else "launched"
