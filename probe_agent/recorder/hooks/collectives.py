"""Start, duration and wait of each collective: `python.collectives`.

Every path from Python to a collective, also through a function imported long ago, ends in a method of `ProcessGroup`,
and waiting in `Work.wait`, or in an operator of `torch.ops` (DTensor). So those are patched, and nothing of
torch.distributed itself, which Dynamo would see; of an operator, the function that its object calls.

Runs on the threads that call collectives: a few clock reads, attributes of the first tensor and a list append. The
recorder's thread makes rows of the calls and finds those that C++ makes (steps/collective_rows.py).
"""

from __future__ import annotations

import functools
import sys
from _thread import get_ident
from time import perf_counter_ns
from typing import Any
from weakref import ref

from ..ring.table import Column, Table
from ..source import Awaited, Recorder
from ..source import Source as BaseSource
from ..steps.collective_rows import ANY_SOURCE, AT_ONCE_NS, P2P, Call, CollectiveRows
from ..torch import loaded
from ..torch.patches import Patches

__all__ = ["Collectives", "Source"]

#: Methods of ProcessGroup: name of the operation, and index of the argument with this rank's input (its output, if
#: there is no input). Methods missing in a torch version are skipped.
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
#: Operators of torch.ops._c10d_functional and their operations. They return the tensor that `wait_tensor` waits for.
OPERATORS = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}
#: The operators exist once this module is imported, by DTensor or Dynamo.
OPERATORS_MODULE = "torch.distributed._functional_collectives"
#: Calls that may wait for the recorder's thread; more are not recorded.
MAX_CALLS = 100_000
BYTES = "size of this rank's input (sparse tensors as if dense); for recv and scatter, of its output"
PEER = "rank in the job of the other side of a send or receive; NULL while a receive from any rank is pending"
PHASE = (
    "phase of the step as in python.steps: data, forward, backward, optimizer, evaluation, generation or other; NULL"
    " before the first whole step, on threads that do not train, and if the phase was not known within 10 s"
)
WAIT = (
    "time the calling thread was blocked in wait(), up to ts; 0 if the operation was already complete; NULL if nothing"
    " waited, and for calls made by C++"
)
DURATION = (
    "from start to completion; NULL on a GPU, for calls made by C++ on gloo, and if it completed unobserved before"
    " anything waited for it"
)
STATE = (
    "completed, failed, enqueued (the device will run it), launched (nothing has waited for it) or waiting; a call that"
    " takes 1 s or more gets one row while it waits and another when it ends"
)


class Collectives(Table):
    name = "python.collectives"
    doc = "One row per collective, send and receive; object collectives appear as the operations they consist of."
    capacity = 65_536
    columns = (
        Column("step", "int", "", "number of the step that called it"),
        Column("ts", "time", "UTC", "known end of the operation, otherwise the time of this row"),
        Column("group", "text", "", "name of its process group; the group's ranks are in torch.process_groups"),
        Column("seq", "int", "", "sequence number in the group, the same on all ranks; -1 for send and recv"),
        Column("op", "text", "", "all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, send, barrier, …"),
        Column("peer", "int or null", "", PEER),
        Column("bytes", "int", "bytes", BYTES),
        Column("dtype", "text", "", "dtype of the first of these tensors"),
        Column("shape", "text", "", "shape of the first of these tensors; +2 means two more"),
        Column("start", "time", "UTC", "time of the call"),
        Column("duration", "float", "s", DURATION),
        Column("wait", "float", "s", WAIT),
        Column("phase", "text", "", f"{PHASE}"),
        Column("wait_phase", "text", "", "phase in which it was waited for; differs from phase if asynchronous"),
        Column("state", "text", "", STATE),
        Column("seen_by", "text", "", "python, or flight recorder if C++ made the call (DDP's reducer)"),
    )


class Source(BaseSource):
    name = "collectives"
    needs = (
        "torch",
        "torch.distributed.distributed_c10d",
        "torch._C._distributed_c10d",
    )
    tables = (Collectives,)
    waits_for = Awaited(
        "no collective has been called since the recorder started", "see the groups: SELECT * FROM torch.process_groups"
    )

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._step = recorder.step
        self._cost = recorder.cost(self.name)
        self._is_compiling = recorder.device.is_compiling
        self._tensor = sys.modules["torch"].Tensor
        self._resolve: Any = getattr(sys.modules["torch._C._distributed_c10d"], "_resolve_process_group", None)
        self._patches = Patches()
        self._has_operators = False
        #: Thread that is inside an operator.
        self._in_operator = 0
        self._calls: list[Call] = []
        #: Calls that may still be waited for, by the id of their work or the key of their tensor's memory.
        self._open: dict[int, Call] = {}
        self._rows = CollectiveRows(recorder.buffer(Collectives), self._step, self._calls, self._open)

    def start(self) -> None:
        self._rows.groups.refresh()
        self._step.spans.keep()
        c10d: Any = sys.modules["torch._C._distributed_c10d"]
        for name, (op, payload_at) in METHODS.items():
            if name in c10d.ProcessGroup.__dict__:
                make = functools.partial(self._noted, op=op, payload_at=payload_at)
                self._patches.wrap(c10d.ProcessGroup, name, make)
        self._patches.wrap(c10d.Work, "wait", self._timed_wait)

    def tick(self) -> None:
        if not self._has_operators and self._resolve is not None and loaded(OPERATORS_MODULE):
            self._has_operators = True
            self._wrap_operators()
        self._rows.make()

    def _wrap_operators(self) -> None:
        operators: Any = sys.modules["torch"].ops._c10d_functional
        for name, op in (*OPERATORS.items(), ("wait_tensor", "")):
            packet = getattr(operators, name, None)
            if packet is not None:
                make = functools.partial(self._noted_operator, op=op) if op else self._timed_operator_wait
                for owner in (packet, packet.default):
                    self._patches.wrap(owner, "_op", make)

    def stop(self) -> None:
        self._patches.restore()
        self._rows.close()
        self._step.spans.forget()
        self._open.clear()

    # On the calling thread.

    def _noted(self, original: Any, op: str, payload_at: int | None) -> Any:
        is_p2p = op in P2P

        def noted(group: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_compiling():
                return original(group, *args, **kwargs)
            call = self._begin(op, group, None if payload_at is None else args[payload_at : payload_at + 1])
            if is_p2p and call is not None:
                call.peer = args[1] if len(args) == 3 else ANY_SOURCE
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

    def _noted_operator(self, original: Any, op: str) -> Any:
        plain, resolve = self._tensor, self._resolve

        def noted(*args: Any, **kwargs: Any) -> Any:
            payload = args[:1]
            first = payload[0][0] if payload and payload[0].__class__ is list and payload[0] else args and args[0]
            ident = get_ident()
            # Tracing, not a plain tensor, or one operator called by another.
            if first.__class__ is not plain or kwargs or self._is_compiling() or self._in_operator == ident:
                return original(*args, **kwargs)
            try:
                group = resolve(args[-1]) if args[-1].__class__ is str else args[-1]
            except Exception:
                return original(*args)  # no such group: torch raises
            call = self._begin(op, group, payload)
            self._in_operator = ident
            try:
                answer = original(*args)
            except BaseException:
                if call is not None:
                    call.failed = True
                    call.ended = call.returned = perf_counter_ns()
                raise
            finally:
                self._in_operator = 0
            if call is not None:
                self._launched_operator(call, group, answer if answer.__class__ is list else [answer])
            return answer

        return noted

    def _begin(self, op: str, group: Any, payload: tuple[Any, ...] | None) -> Call | None:
        if len(self._calls) >= MAX_CALLS or not self._patches:
            return None  # detached, but the job has kept the patched method
        began = perf_counter_ns()
        try:
            call = Call(self._step.number, op, group.group_name, get_ident())
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

    def _launched_operator(self, call: Call, group: Any, answers: list[Any]) -> None:
        """Note the memory of the returned tensors: the job waits for them or for views of them."""
        now = perf_counter_ns()
        call.by_operator = True
        try:
            for answer in answers:
                if (memory := _memory(answer)) is not None:
                    self._open[memory] = call
            call.number = _number(group)
            call.returned = now
            self._cost.ns += perf_counter_ns() - now
        except Exception as error:
            call.returned = now
            if self.recorder.fail(self.name, error):
                raise

    def _timed_operator_wait(self, original: Any) -> Any:
        plain = self._tensor

        def wait(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if tensor.__class__ is not plain or self._is_compiling():
                return original(tensor, *args, **kwargs)
            memory = _memory(tensor)
            call = None if memory is None else self._open.pop(memory, None)
            if call is None or call.ended:
                return original(tensor, *args, **kwargs)
            call.waiting = perf_counter_ns()
            call.overlapped = call.waiting - call.returned > AT_ONCE_NS  # unless the wait takes time
            return _waited(call, original, tensor, *args, **kwargs)

        return wait

    def _timed_wait(self, original: Any) -> Any:
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            call = None if self._is_compiling() else self._open.pop(id(work), None)
            if call is None or call.work() is not work:
                return original(work, *args, **kwargs)
            call.waiting = perf_counter_ns()
            if call.waiting - call.returned > AT_ONCE_NS and not call.on_device:
                call.overlapped = self._is_completed(work)
                call.waiting = perf_counter_ns()
            answer = _waited(call, original, work, *args, **kwargs)
            if call.peer == ANY_SOURCE:
                call.peer = _source_of(work)
            return answer

        return wait

    def _is_completed(self, work: Any) -> bool:
        try:
            return bool(work.is_completed())
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise
            return False


def _waited(call: Call, wait: Any, *args: Any, **kwargs: Any) -> Any:
    """Wait, and note in `call` how long it took and whether it failed."""
    try:
        return wait(*args, **kwargs)
    except BaseException:
        call.failed = True
        raise
    finally:
        call.ended = perf_counter_ns()
        call.wait = call.ended - call.waiting


def _source_of(work: Any) -> int:
    """Return the rank in the group whose message a receive from any rank has taken."""
    try:
        return int(work._source_rank())
    except Exception:
        return ANY_SOURCE  # the backend does not tell, or is the job's own


def _memory(tensor: Any) -> int | None:
    """Return a key for the tensor's memory, distinct from ids; None if it has none, as inside torch.func."""
    try:
        return -int(tensor.untyped_storage().data_ptr())
    except RuntimeError:
        return None


def _number(group: Any) -> int:
    """Return the group's number of operations so far; -1 if its backend does not count."""
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:
        return -1
