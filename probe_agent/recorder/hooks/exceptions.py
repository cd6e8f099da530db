"""Uncaught exceptions, with their causes: `python.exceptions`.

`sys.excepthook` and `threading.excepthook` are chained: the exception is written to the ring first, then the job's own
hook is called with the same arguments, so that a hook that ends the process loses nothing. In processes started by
multiprocessing, which catches and prints by itself, its calls of `traceback.print_exc` and `format_exc` tell. A hook
that the job installs later and that does not call ours hides threads from us; of the main thread, the interpreter
tells at exit.

Runs on the thread that raises, once for each uncaught exception; nothing runs before that.
"""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock, get_ident, get_native_id
from collections.abc import Callable, Mapping
from time import time_ns
from types import FrameType, ModuleType
from typing import Any

from ..guest import at_exit
from ..guest.exception_chain import chain
from ..ring.table import NULL_INT, Column, Table
from ..source import Awaited, Recorder
from ..source import Source as BaseSource

__all__ = ["Exceptions", "Source"]

#: Bytes of text of other threads' exceptions that are kept: the rest of the ring is for the main thread's.
MAX_THREADS_TEXT = 120_000
#: The functions that catch the exception of a whole process, by module.
_CATCHERS = {("multiprocessing.process", "_bootstrap"), ("torch.multiprocessing.spawn", "_wrap")}


class Exceptions(Table):
    name = "python.exceptions"
    doc = (
        "Uncaught exceptions: one row for each exception of a chain, without values of variables. Rows stay when the"
        " process has ended."
    )
    capacity = 512
    columns = (
        Column("step", "int", "", "number of the running step; -1 before the first"),
        Column("ts", "time", "UTC", "when nothing had caught it"),
        Column("thread", "text", "", "name of the thread"),
        Column("is_main", "bool", "", "whether it was the main thread's, which ends the process"),
        Column("number", "int", "", "number of the uncaught exception in this process, from 0"),
        Column("link", "int", "", "place in its chain: 0 for the uncaught exception, 1 for its cause, and so on"),
        Column("relation", "text", "", "uncaught, cause (raise … from) or context (raised while it was handled)"),
        Column("type", "text", "", "class of the exception"),
        Column("message", "text", "", "its text, 2,000 characters at most"),
        Column("func", "text", "", "function that raised it"),
        Column("file", "text", "", "path of its source in the target"),
        Column("lineno", "int or null", "", "line that raised it"),
        Column("traceback", "text", "", "its frames, outermost first"),
    )


class Source(BaseSource):
    name = "exceptions"
    tables = (Exceptions,)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._buffer = recorder.buffer(Exceptions)
        self._number = 0
        self._text = 0
        #: Of the main thread's newest, which the interpreter names again at exit.
        self._last_id = 0
        #: By thread: what its hook is being told, and may tell the main thread's.
        self._told: dict[int, BaseException] = {}
        self._lock = allocate_lock()
        self._replaced: list[tuple[ModuleType, str, Any, Callable[..., object]]] = []

    def start(self) -> None:
        # Now: when memory has run out, a ring can no longer be made.
        self.recorder.make_ring(self._buffer)
        self._replace(sys, "excepthook", _main_hook)
        at_exit.tell(self._at_exit)
        self.tick()

    def tick(self) -> None:
        modules = {module for module, *_ in self._replaced}
        threading = sys.modules.get("threading")
        if threading is not None and threading not in modules:
            self._replace(threading, "excepthook", _thread_hook)
        traceback = sys.modules.get("traceback")
        if traceback is not None and traceback not in modules and _is_child_of_multiprocessing():
            self._replace(traceback, "print_exc", _printer)
            self._replace(traceback, "format_exc", _printer)

    def awaited(self) -> Mapping[str, Awaited]:
        if self.recorder.has_rows(Exceptions):
            return {}
        hidden = [
            f"{module.__name__}.{name}" for module, name, _, ours in self._replaced if not _is_on(module, name, ours)
        ]
        if hidden:
            why = f"none was seen, but the job has replaced {' and '.join(hidden)} since the recorder started"
            return {Exceptions.name: Awaited(why, "read the output of the job")}
        return {
            Exceptions.name: Awaited("no exception has gone uncaught since the recorder started", "no action needed")
        }

    def stop(self) -> None:
        at_exit.untell(self._at_exit)
        while self._replaced:
            module, name, original, ours = self._replaced.pop()
            if _is_on(module, name, ours):
                setattr(module, name, original)
            # The job may have kept ours: from now on it only calls the original.
            ours.note = _ignore  # type: ignore[attr-defined]

    def _replace(self, module: ModuleType, name: str, make: Callable[..., Any]) -> None:
        original = getattr(module, name)
        ours = make(original, self._told)
        ours.note = self._note
        self._replaced.append((module, name, original, ours))
        setattr(module, name, ours)

    def _at_exit(self) -> None:
        """Note what ended the main thread if a hook of the job's has hidden it."""
        if any(one[0] is sys and not _is_on(one[0], one[1], one[3]) for one in self._replaced):
            error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
            if isinstance(error, BaseException) and id(error) != self._last_id:
                self._note(error, "MainThread")

    # On the thread that has raised.

    def _note(self, error: BaseException | None, thread: str = "") -> None:
        """Record `error`, which has ended `thread`, or else the calling thread."""
        try:
            if error is not None:
                self._write(error, thread or self._calling_thread(error))
        except BaseException as failure:
            self.recorder.fail(self.name, failure)

    def _calling_thread(self, error: BaseException) -> str:
        """Return the name of the calling thread, empty if `error` has been recorded."""
        if _is_main():
            return "" if id(error) == self._last_id else "MainThread"
        ident = get_ident()
        thread = getattr(sys.modules.get("threading"), "_active", {}).get(ident)
        return "" if self._told.get(ident) is error else str(getattr(thread, "name", "unknown"))

    def _write(self, error: BaseException, thread: str) -> None:
        if not thread:
            return
        is_main = _is_main()
        now = time_ns() // 1000
        with self._lock:
            number = self._buffer.number
            rows: list[tuple[object, ...]] = []
            for place, link in enumerate(chain(error)):
                texts: tuple[str | None, ...] = (link.message, link.frames)
                if not is_main:
                    self._text += len((link.message + link.frames).encode("utf-8", "replace"))
                    texts = texts if self._text < MAX_THREADS_TEXT else (None, None)
                rows.append(
                    (
                        self.recorder.step.number,
                        now,
                        number(thread[:100]),
                        is_main,
                        self._number,
                        place,
                        number(link.relation),
                        number(link.type),
                        number(texts[0]),
                        number(link.func),
                        number(link.file),
                        NULL_INT if link.lineno is None else link.lineno,
                        number(texts[1]),
                    )
                )
            self._buffer.rows += rows  # at once: another thread may flush
            self._number += 1
            if is_main:
                self._last_id = id(error)
        self.recorder.write_out(self._buffer)


def _ignore(error: BaseException | None, thread: str = "") -> None:
    """Note nothing: the recorder has gone."""


def _is_main() -> bool:
    return get_native_id() == os.getpid()


def _is_on(module: ModuleType, name: str, ours: object) -> bool:
    return getattr(module, name, None) is ours


def _main_hook(original: Callable[..., object], told: dict[int, BaseException]) -> Callable[..., object]:
    def excepthook(kind: Any, value: Any, trace: Any, /) -> None:
        excepthook.note(value)  # type: ignore[attr-defined]
        failure: BaseException | None = None
        try:
            original(kind, value, trace)
        except SystemExit:
            raise
        except BaseException as error:
            failure = error
        if failure is not None:
            _show_failed_hook(failure, (kind, value, trace))

    return excepthook


def _show_failed_hook(failure: BaseException, original: tuple[Any, Any, Any]) -> None:
    """Print what the interpreter prints when a hook raises, without our frame."""
    failure.__traceback__ = failure.__traceback__ and failure.__traceback__.tb_next
    sys.stderr.write("Error in sys.excepthook:\n")
    sys.__excepthook__(type(failure), failure, failure.__traceback__)
    sys.stderr.write("\nOriginal exception was:\n")
    sys.__excepthook__(*original)


def _thread_hook(original: Callable[..., object], told: dict[int, BaseException]) -> Callable[..., object]:
    def excepthook(args: Any, /) -> object:
        if issubclass(args.exc_type, SystemExit):  # it ends the thread without a word
            return original(args)
        excepthook.note(args.exc_value, getattr(args.thread, "name", "unknown"))  # type: ignore[attr-defined]
        told[get_ident()] = args.exc_value
        try:
            return original(args)
        finally:
            told.pop(get_ident(), None)

    return excepthook


def _printer(original: Callable[..., object], told: dict[int, BaseException]) -> Callable[..., object]:
    def printer(*args: Any, **kwargs: Any) -> object:
        if _is_catcher(sys._getframe(1)):
            printer.note(sys.exc_info()[1])  # type: ignore[attr-defined]
        return original(*args, **kwargs)

    return printer


def _is_catcher(frame: FrameType) -> bool:
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) in _CATCHERS


def _is_child_of_multiprocessing() -> bool:
    process: Any = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None
