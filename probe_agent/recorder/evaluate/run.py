"""One evaluation: code that is compiled, run, shown and stopped.

`run` is called on a thread of the recorder, or on the training thread between two steps; everything else on the thread
of the request. No exception of the code leaves `run`, except those that the job's own signal handlers raised in it.
"""

from __future__ import annotations
import __future__

import ast
import itertools
import sys
from _thread import allocate_lock, get_ident
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from ..guest import own_threads
from ..guest.main_thread import repair_threading
from ..names.lookup import Lookup
from ..torch.captures import allow_captures_elsewhere
from . import show
from .capture import Capture, Sink
from .fence import Fence, Stopped
from .foreign import is_from_signal_handler
from .session import Namespace, drop

__all__ = ["Evaluation"]

_numbers = itertools.count(1)
_FUTURES = 0
for _name in __future__.all_feature_names:
    _FUTURES |= getattr(__future__, _name).compiler_flag


class Evaluation:
    """One evaluation; `state` is None until the code has ended by itself."""

    def __init__(
        self,
        code: str,
        namespace: Namespace,
        capture: Capture,
        on_error: Callable[[str, BaseException], object],
        *,
        keep: bool,
        at_step: bool,
    ) -> None:
        """With `keep` the namespace belongs to a session, and the last value is assigned to `_`."""
        self._on_error = on_error
        self.namespace = namespace
        self.sink = Sink(may_wait=not at_step)
        self.fence = Fence()
        self.notes: list[str] = []
        self.state: str | None = None
        self.result: str | None = None
        self.traceback: str | None = None
        #: The thread that runs it, once it runs; and since when (`time.monotonic`).
        self.ident: int | None = None
        self.started = 0.0
        self._code = code
        self._keep = keep
        self._at_step = at_step
        self._capture = capture
        self._file = f"<eval {next(_numbers)}>"
        self._foreign: BaseException | None = None
        self._compiled: tuple[Any, Any] | None = None
        self._done = allocate_lock()
        self._done.acquire()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; return True once."""
        return self._done.acquire(timeout=timeout_s)

    def prepare(self) -> bool:
        """Compile the code now to run it later. Return False, with `traceback` set, if it does not compile."""
        show.remember_source(self._file, self._code)
        try:
            self._compiled = _compile(self._code, self._file)
        except Exception as error:
            self.traceback = show.exception_text(error, self._file)
            return False
        return True

    def run(self) -> None:
        """Run the code on the calling thread."""
        self.ident = get_ident()
        self.started = monotonic()
        self._capture.route(self.ident, self.sink)
        try:
            self.fence.run(self._execute)
            self._note_foreign(self.fence.caught)
            self.fence.caught = None
        finally:
            self._capture.unroute(self.ident)
            self._finish()
            self._done.release()
        if self._foreign is not None:
            foreign, self._foreign = self._foreign, None
            raise foreign

    def withdraw(self) -> None:
        """Clean up an evaluation that will never run."""
        self._finish()

    def _finish(self) -> None:
        try:
            self._clean_up()
        except Exception as error:  # the border: this may be the training thread
            self._on_error("eval", error)
        self._capture.end()

    def _clean_up(self) -> None:
        repair_threading()
        if not self._at_step:
            own_threads.forget_dummy_thread()  # now: the thread may end after the answer
        lookup = self.namespace.scope.lookup
        if lookup is not None:
            self._note_shadowed(lookup)
            lookup.finish()
        if self._keep:
            self.namespace.files.append(self._file)
        else:
            show.forget_source(self._file)
            drop(self)
        self.namespace = Namespace()

    def _execute(self) -> None:
        try:
            if not self._at_step:
                _use_device_of_job()
            show.remember_source(self._file, self._code)
            body, last = self._compiled or _compile(self._code, self._file)
            exec(body, self.namespace)
            if last is not None:
                self._show(eval(last, self.namespace))
            self.state = "finished"
        except BaseException as error:
            self._note_foreign(error)
            if _has_stopped(error):
                self.notes.append(f"stopped in {show.place(error, self._file)}")
            else:
                self.traceback = show.exception_text(error, self._file)
                self.state = "failed"

    def _note_foreign(self, error: BaseException | None) -> None:
        """Keep an exception of the job's signal handlers for the job, even if `Stopped` hit it on its way out."""
        if self._at_step and self._foreign is None:
            self._foreign = next((one for one in _chain(error) if is_from_signal_handler(one)), None)

    def _show(self, value: Any) -> None:
        if value is None:
            return
        self.result = show.result_text(value, self.notes.append)
        if self._keep:
            self.namespace["_"] = value

    def _note_shadowed(self, lookup: Lookup) -> None:
        """Add a note for each name that was read from the job and then assigned: the job's own value is unchanged."""
        for name in sorted(self.namespace.assigned() & set(lookup.outside)):
            if id(self.namespace[name]) != lookup.outside[name]:
                self.notes.append(f"{name}: assigned here only, the job's own {name} is unchanged")


def _compile(code: str, file: str) -> tuple[Any, Any]:
    """Compile the code without its last expression, and that expression, None if it ends with a statement."""
    tree = ast.parse(code, file)
    last: Any = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    body = compile(tree, file, "exec", dont_inherit=True)
    if last is None:
        return body, None
    return body, compile(ast.Expression(last.value), file, "eval", body.co_flags & _FUTURES, dont_inherit=True)


def _has_stopped(error: BaseException) -> bool:
    """Return whether the code was stopped, even if it replaced the exception by another."""
    return any(isinstance(one, Stopped) for one in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield `error` and the exceptions it was raised from or while handling."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _use_device_of_job() -> None:
    """Select the CUDA device on which the job holds memory for this thread, if there is exactly one, and let it wait
    for the device while the job captures a graph.

    Otherwise `torch.zeros(1, device="cuda")` on rank 3 would create a context of some hundred MiB on device 0. Takes
    about 100 µs if CUDA is in use, otherwise nothing.
    """
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    allow_captures_elsewhere()
    if cuda is None or not cuda.is_initialized() or cuda.device_count() < 2:
        return
    used = [device for device in range(cuda.device_count()) if cuda.memory_reserved(device)]
    if len(used) == 1:
        cuda.set_device(used[0])
