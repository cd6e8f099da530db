"""Names for the parts of a job: `with probe_agent.span("rollout"):`, or `@probe_agent.span("rollout")`.

Runs on the calling thread of the job. Without a recorder a span costs a look at an attribute of `sys`; with one, see
recorder/hooks/spans.py. A recorder that comes later records the spans that begin from then on.
"""

import sys  # and no __future__: a file of that name in the job's folder would be imported in its place

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` is not free in a process that has not imported it
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["span"]

#: Where a recorder puts itself. Not getattr(sys, …): of a name that is missing, that makes a message first.
_SYS, _MODULES = sys.__dict__, sys.modules
#: Flags of code objects, as in `inspect`, whose import would cost more than all else here.
_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200


class span:
    """A part of the job: each time it is entered and left is a row of `python.spans`.

    On the training thread, a name that begins with rollout or generat is the phase `generation` of `python.steps`, and
    one that begins with eval or validat is `evaluation`.
    """

    __slots__ = ("_name", "_open")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f'a span needs a name, as in @probe_agent.span("rollout"), not {type(name).__name__}')
        self._name = name
        self._open: list[Any] | None = None  # Any: the recorder may be another copy of the code

    def __enter__(self) -> None:
        # First, and not left to the recorder: a graph must not depend on whether there is one.
        is_compiling = getattr(getattr(_MODULES.get("torch"), "compiler", None), "is_compiling", None)
        if is_compiling is not None and is_compiling():
            return
        spans = _SYS.get("_probe_spans")
        if spans is not None:
            begun = spans.begin(self._name)
            if begun is not None:
                if self._open is None:
                    self._open = []
                self._open.append(begun)

    def __exit__(
        self,
        kind: "type[BaseException] | None",
        error: "BaseException | None",
        traceback: "TracebackType | None",
    ) -> None:
        if self._open:
            self._open.pop().end(kind)

    def __call__(self, function: "F") -> "F":
        """Return `function` with a span around each call; of a coroutine or a generator, around all of its run."""
        name = self._name
        flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
        if flags & _ASYNC_GENERATOR:
            raise TypeError(f"{name}: a span cannot decorate an async generator; write `with span(…)` inside it")
        run: Callable[..., Any]
        if flags & _COROUTINE:

            async def run(*args: "Any", **kwargs: "Any") -> "Any":
                with span(name):
                    return await function(*args, **kwargs)

        elif flags & _GENERATOR:

            def run(*args: "Any", **kwargs: "Any") -> "Any":
                with span(name):
                    return (yield from function(*args, **kwargs))

        else:

            def run(*args: "Any", **kwargs: "Any") -> "Any":
                with span(name):
                    return function(*args, **kwargs)

        wrapper: Any = run
        for trait in ("__module__", "__name__", "__qualname__", "__doc__"):  # functools.wraps, without its import
            setattr(wrapper, trait, getattr(function, trait, None) or getattr(run, trait))
        wrapper.__wrapped__ = function
        return wrapper  # type: ignore[no-any-return]
