"""Composition root of the recorder: it puts the parts together in the target and takes them apart again.

Runs on the recorder's own thread. Every change to the process is made by the `start` of some part and undone by its
`stop`; `Runtime.stop` calls them all in reverse. Measured cost: docs/overhead.md.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from socket import socket
from time import monotonic, perf_counter_ns, sleep, time
from types import ModuleType
from typing import Any

from . import hooks, operations, samplers
from .config import SettingError, Settings
from .control.server import ControlServer, Operation, Reply
from .evaluate import Evaluator
from .guest import at_exit, fork_safety, own_threads, switch_interval
from .guest.end_mark import mark_end, what_was_raised
from .guest.failures import Errors, Failures
from .guest.fault_dump import FaultDump
from .guest.redaction import redacted_command
from .job.rank import meeting_place, name_of, number_in, rank_and_size
from .no_rows import AwaitedFile, reasons
from .ring.buffer import RowBuffer
from .ring.folder import CONTROL, STACKS, TARGET, hold, keep, prune, remove, ring_name
from .ring.writer import RingWriter, close_half_made
from .source import Recorder, Source
from .torch import loaded

__all__ = ["PROTOCOL", "Runtime"]

PROTOCOL = 1
#: Time given to requests that a detach cancels, such as an eval.
CANCELLED_S = 2.0
#: Time given to a thread that flushes the same table.
FLUSH_S = 0.05
#: Smallest capacity of a ring, whatever rings.scale says.
MIN_ROWS = 16
_PACKAGE = __name__.rpartition(".")[0]
_CAPACITY_SETTINGS = {"python.torch_trace": "trace.rows", "python.steps": "steps.rows"}


class Runtime:
    """The recorder of this process; `run` is the body of its thread."""

    def __init__(self, folder: str, identity: Mapping[str, object]) -> None:
        self._folder = folder
        self._held = hold(folder)
        self._identity = dict(identity)
        self._name_alone = name_of(*(identity[fact] for fact in ("host", "pid", "start_ticks")))
        self._identity["job"] = "" if identity["rank"] is None or self._world_size > 1 else self._name_alone
        self._settings = Settings()
        errors = RowBuffer(Errors)
        self._failures = Failures(errors)
        self._recorder = Recorder(self._settings, self._failures.record)
        self._recorder.folder = folder
        self._recorder.buffers[Errors.name] = errors
        self._running: list[Source] = []
        self._taken_off: list[type[Source]] = []
        self._num_left = 0  # threads that did not end
        self._keeps_rings = False
        self._kept = ""  # name of the folder that stays
        #: Sources that need least come first: the recorder's frames are marked for Dynamo before any hook can run.
        self._to_start: list[type[Source]] = sorted(_source_classes(), key=lambda kind: len(kind.needs))
        self._awaited = AwaitedFile(folder)
        self._faults = FaultDump(os.path.join(folder, STACKS))
        self._steps = self._recorder.at_step
        self._steps.last_step = self._last_step
        self._evaluator = Evaluator(self._steps, self._training_ident, self._failures.record, self._recorder.step)
        operations_of = _operations(self._recorder)
        self._recorder.ask = partial(_ask, operations_of)
        self._server = ControlServer(
            os.path.join(folder, CONTROL),
            {
                "hello": self._hello,
                "eval": self._evaluator.eval,
                "hold": self._evaluator.hold,
                "ticket": self._evaluator.ticket,
                "complete": self._evaluator.complete,
                "config": self._config,
                "flush": self._flush,
                "detach": self._detach,
                **operations_of,
            },
            self._failures.record,
        )
        self._recorder.make_ring = lambda buffer: buffer.flush(self._make_ring)
        self._recorder.write_out = self._write_out
        self._recorder.watch, self._recorder.unwatch = self._server.watch, self._server.unwatch
        keep_s, keep_bytes = self._settings.kept_after_death
        self._guarded("prune", partial(prune, os.path.dirname(folder), keep_s, keep_bytes))
        for problem in self._settings.problems:
            self._failures.record("config", problem)

    def run(self) -> None:
        """Serve until detached and leave nothing behind, or until the process ends and leave its rings."""
        try:
            self._identity["stacks_signal"] = self._faults.arm()
            self._recorder.step.beginning.append(self._run_pending)
            fork_safety.watch(self._in_child)
            at_exit.tell(self._server.stop_serving)
            self._tick()
            self._identity["readonly"] = bool(self._settings["readonly"])
            if self._settings["readonly"]:
                self._server.allow_only(["hello", "config", "flush", *_reading_operations()])
            self._server.listen()
            self._write_identity()
            switch_interval.rest()
            if not at_exit.is_ending():
                self._server.serve(self._tick, float(self._settings["flush.interval"]))
        finally:
            switch_interval.hurry()
            if at_exit.is_ending():
                self._flush_all()
                self._guarded("end", self._mark_end)
                self._guarded("awaited", self._write_awaited)
                self._server.close()
            else:
                self.stop()

    def _mark_end(self) -> None:
        raised = what_was_raised()
        mark_end(self._folder, at_exit.began_at(), "raised" if raised else "exit", raised)

    def stop(self) -> None:
        """Undo everything `run` did, except the short switch interval, which the caller restores last. A part that
        cannot be undone keeps none of the others from it, nor a client from its answer."""
        self._guarded("steps", partial(self._steps.close, CANCELLED_S))
        for source in reversed(self._running):
            self._guarded(source.name, source.stop)
        self._guarded("forks", partial(fork_safety.forget, self._in_child))
        self._recorder.step.beginning.clear()
        self._guarded("fault dump", self._faults.disarm)
        self._guarded("eval", self._evaluator.close)
        if self._keeps_rings:
            self._guarded("flush", self._flush_all)
        self._guarded("rings", self._recorder.close)
        os.close(self._held)
        if self._keeps_rings:
            self._guarded("keep", self._keep_folder)
        if not self._kept:
            self._guarded("folder", partial(remove, self._folder))
        self._guarded("control", self._server.close)
        self._num_left = own_threads.wait_for_end(CANCELLED_S)

    def _keep_folder(self) -> None:
        self._kept = os.path.basename(keep(self._folder))

    def farewells(self) -> list[tuple[socket, bytes]]:
        """Return the clients that asked for the detach, with the answer to send once the recorder is gone."""
        left: dict[str, object] = {"threads_left": self._num_left} if self._num_left else {}
        kept = {"kept": self._kept} if self._kept else {}
        answer = json.dumps({**left, **kept, "done": True}).encode() + b"\n"
        return [(connection, answer) for connection in self._server.kept()]

    def _in_child(self) -> None:
        """Clean a forked child, which has the recorder's hooks but not its thread; the files belong to the parent."""
        for source in reversed(self._running):
            self._guarded(source.name, source.stop)
        self._running.clear()
        self._recorder.step.beginning.clear()
        self._faults.disarm()
        self._evaluator.close()
        if any(buffer.may_be_half_made for buffer in list(self._recorder.buffers.values())):
            self._guarded("half-made ring", partial(close_half_made, self._folder))
        self._recorder.close()
        self._server.close()
        switch_interval.rest()
        os.close(self._held)
        if "." not in _PACKAGE:  # carried in: a child that wants a recorder loads its own copy
            for name in [name for name in list(sys.modules) if name.partition(".")[0] == _PACKAGE]:
                del sys.modules[name]

    def _tick(self) -> None:
        for kind in list(self._to_start):
            if all(loaded(name) for name in kind.needs):
                self._to_start.remove(kind)
                self._guarded(kind.name, partial(self._start, kind))
        for source in list(self._running):
            self._guarded(source.name, source.tick)
            if source.name in self._failures.given_up:
                self._running.remove(source)
                self._taken_off.append(type(source))
                self._guarded(source.name, source.stop)
        self._guarded("rank", self._learn_rank)
        self._flush_all()
        self._guarded("awaited", self._write_awaited)
        with suppress(PermissionError):  # the process has changed its user
            os.utime(self._held)  # `prune` takes it as a sign of life

    @property
    def _world_size(self) -> int:
        return int(str(self._identity["world_size"]))

    def _learn_rank(self) -> None:
        """Learn rank and world size as soon as the job knows them; the last values outlive its process group."""
        rank, world_size = rank_and_size()
        job = self._recorder.job if world_size > 1 else "" if rank is None else self._name_alone
        known: dict[str, object] = {"rank": rank, "world_size": world_size, "store": meeting_place(), "job": job}
        known["roles"] = self._recorder.roles
        if known.items() <= self._identity.items() or (world_size == 1 and self._world_size > 1):
            return
        self._identity.update(known)
        if os.path.exists(os.path.join(self._folder, TARGET)):
            self._write_identity()

    def _start(self, kind: type[Source]) -> None:
        if "torch" in kind.needs:
            self._recorder.open_device()  # now: a hook on another thread could make a second one
        source = kind(self._recorder)
        self._running.append(source)  # first: a source that fails half way must be stopped too
        source.start()

    def _write_awaited(self) -> None:
        self._awaited.write(reasons(self._running, self._to_start, self._taken_off))

    def _flush_all(self) -> None:
        for buffer in list(self._recorder.buffers.values()):
            buffer.flush(self._make_ring if buffer.rows else None)

    def _write_out(self, buffer: RowBuffer) -> None:
        """Write the rows of `buffer` to its ring, though another thread may be flushing it."""
        deadline = monotonic() + FLUSH_S
        while buffer.rows and monotonic() < deadline:
            buffer.flush(self._make_ring)
            if buffer.rows:
                sleep(0.001)

    def _make_ring(self, buffer: RowBuffer) -> RingWriter | None:
        name = buffer.table.name
        capacity = self._settings[_CAPACITY_SETTINGS[name]] if name in _CAPACITY_SETTINGS else buffer.table.capacity
        try:
            return RingWriter(
                os.path.join(self._folder, ring_name(name)),
                buffer.table,
                {
                    "host": self._identity["host"],
                    "pid": self._identity["host_pid"],
                    "rank": self._identity["rank"],
                    "world_size": self._identity["world_size"],
                    "job": self._identity["job"] or None,
                },
                # A table of one row holds the current state.
                capacity=1 if capacity == 1 else max(MIN_ROWS, int(capacity * float(self._settings["rings.scale"]))),
            )
        except OSError as error:
            if buffer.table is not Errors:
                self._failures.record(name, error)
            return None

    def _guarded(self, name: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            self._failures.record(name, error)

    def _run_pending(self) -> None:
        if self._steps.pending:
            self._steps.run_pending()

    def _last_step(self) -> str:
        step = self._recorder.step
        if step.thread is None:
            awaited = reasons(self._running, self._to_start, self._taken_off).get("python.steps")
            told = f": {awaited.why}; {awaited.remedy}" if awaited else ""
            return f"not seen since the recorder started{told}"
        return f"step {step.number - 1}, {(perf_counter_ns() - step.started) * 1e-9:.1f} s ago"

    def _training_ident(self) -> int | None:
        return self._recorder.step.thread

    def _write_identity(self) -> None:
        path = os.path.join(self._folder, TARGET)
        with open(path + ".new", "w") as file:
            json.dump(self._identity, file)
        os.chmod(path + ".new", 0o600)
        os.rename(path + ".new", path)

    # Operations of the control socket; each runs on a short-lived thread of the recorder.

    def _hello(self, request: Mapping[str, Any], reply: Reply) -> dict[str, object]:
        return dict(self._identity)

    def _config(self, request: Mapping[str, Any], reply: Reply) -> dict[str, object]:
        try:
            self._settings.change(request.get("changes") or {})
        except SettingError as error:
            return {"error": {"message": error.message, "hint": error.hint}}
        notes = [f"{problem.message}; {problem.hint}" for problem in self._settings.problems]
        described = self._settings.describe()
        for setting in described:
            if setting["name"] == "trace.every":
                setting["in_force"], setting["why"] = self._recorder.governor.explain()
            elif setting["name"] == "step.from" and self._recorder.step.is_training:
                setting["in_force"], setting["why"] = self._recorder.ends.explain_number()
        return {"settings": described, "notes": notes}

    def _flush(self, request: Mapping[str, Any], reply: Reply) -> dict[str, object]:
        self._flush_all()
        return {}

    def _detach(self, request: Mapping[str, Any], reply: Reply) -> dict[str, object]:
        self._keeps_rings = bool(request.get("keep"))
        self._server.keep(reply)
        self._server.stop_serving()
        return {}


def identify(host_pid: int, start_ticks: int, how: str, version: str, asleep: dict[str, float]) -> dict[str, object]:
    """Return the identity of this process, the content of `target.json`."""
    torch = loaded("torch")
    rank, world_size = rank_and_size()
    return {
        "pid": os.getpid(),
        "host_pid": host_pid,
        "start_ticks": start_ticks,
        "uid": os.getuid(),
        "host": os.uname().nodename,
        "rank": rank,
        "local_rank": number_in("LOCAL_RANK", 0),
        "world_size": world_size,
        "store": meeting_place(),
        "version": version,
        "protocol": PROTOCOL,
        "python": ".".join(map(str, sys.version_info[:3])),
        "command": _command(),
        "how": how,
        "attached_at": time(),
        "asleep": asleep,
        "torch": getattr(torch, "__version__", None) and str(torch.__version__),  # type: ignore[union-attr]
    }


def _command() -> list[str]:
    with open("/proc/self/cmdline", "rb") as file:
        words = [part.decode("utf-8", "replace") for part in file.read().split(b"\0")[:-1]]
    return redacted_command(words)


def _source_classes() -> Iterator[type[Source]]:
    """Yield every `Source` in hooks/ and samplers/; a new file there is a new source."""
    for package in (hooks, samplers):
        for name in _modules_of(package):
            yield _module(name).Source


def _operations(recorder: Recorder) -> dict[str, Operation]:
    """Return every operation in operations/ by the name of its file."""

    def operation_of(module: ModuleType) -> Operation:
        if hasattr(module, "stream"):
            return partial(module.stream, recorder)
        return lambda request, reply: module.answer(recorder, request)

    return {name.rpartition(".")[2]: operation_of(_module(name)) for name in _modules_of(operations)}


def _ask(operations: Mapping[str, Operation], name: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of an operation that needs no connection to its client."""
    return dict(operations[name](request, None) or {})  # type: ignore[arg-type]  # there is no client


def _reading_operations() -> list[str]:
    """Return the operations that change nothing (`READS`)."""
    return [n.rpartition(".")[2] for n in _modules_of(operations) if getattr(_module(n), "READS", False)]


def _modules_of(package: ModuleType) -> list[str]:
    """Return the modules of a package of the recorder, carried in as a payload or read from disk."""
    names = getattr(package.__loader__, "names", None)
    if names is None:
        files = [file for file in os.listdir(package.__path__[0]) if file.endswith(".py") and file != "__init__.py"]
        names = [f"{package.__name__}.{file[:-3]}" for file in files]
    return sorted(name for name in names if name.startswith(package.__name__ + "."))


def _module(name: str) -> ModuleType:
    return __import__(name, globals(), fromlist=("*",))
