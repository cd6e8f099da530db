"""Stacks: the question for them, and those of many ranks as one tree, what they have in common once.

Folding is a pure function on what was answered, one dictionary look-up a frame.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace

from probe_agent.wire import Backtrace, Frame, StacksRequest, ThreadStack
from probe_cli.client import Client

__all__ = ["Branch", "ask_stacks", "fold", "threads_of"]

Stack = tuple[int, str, Sequence[Frame]]


async def ask_stacks(
    client: Client,
    *,
    all_threads: bool = False,
    outside: bool = False,
    native: bool = False,
    with_locals: bool = False,
    tasks: bool = False,
    workers: bool = False,
) -> Backtrace:
    """Return the stacks of one target; with `outside` no recorder is waited for."""
    wanted = StacksRequest(all_threads, outside, native, with_locals, tasks, workers)
    if wanted.native or wanted.locals:
        return await client.send(Backtrace, "POST", "/v1/backtrace", wanted)
    flags = {name: on for name, on in asdict(wanted).items() if name not in ("native", "locals")}
    return await client.get(Backtrace, "/v1/backtrace", **{name: str(on).lower() for name, on in flags.items()})


@dataclass(frozen=True)
class Branch:
    """Frames that `ranks` have in common, outermost first, and where they go from there. A branch without frames: these
    ranks go nowhere from there."""

    ranks: tuple[int, ...]
    thread: str
    frames: tuple[Frame, ...]
    branches: tuple[Branch, ...]


@dataclass
class _Node:
    frame: Frame | None = None
    ranks: list[int] = field(default_factory=list)
    calls: dict[tuple[str, str, int], _Node] = field(default_factory=dict)
    #: Those whose stack ends here.
    ending: list[int] = field(default_factory=list)


def fold(stacks: Iterable[Stack]) -> tuple[Branch, ...]:
    """One tree for each thread's name; a stack is (rank, thread, frames), its frames innermost first."""
    roots: dict[str, _Node] = {}
    for rank, thread, frames in stacks:
        node = roots.setdefault(thread, _Node())
        node.ranks.append(rank)
        for frame in reversed(frames):
            # Not all who read stacks know the qualified name; file and line tell what it would.
            key = (frame.func.rpartition(".")[2], frame.file, frame.lineno)
            called = node.calls.get(key)
            if called is None:
                called = node.calls[key] = _Node(frame)
            node = called
            node.ranks.append(rank)
        node.ending.append(rank)
    return _ordered(_branch(thread, root) for thread, root in roots.items())


def _branch(thread: str, node: _Node) -> Branch:
    frames: list[Frame] = []
    while True:
        if node.frame is not None:
            frames.append(node.frame)
        if len(node.calls) != 1 or node.ending:
            break
        node = next(iter(node.calls.values()))
    ranks = tuple(sorted(set(node.ranks)))
    branches = [_branch("", called) for called in node.calls.values()]
    if branches and node.ending:
        branches.append(Branch(tuple(sorted(set(node.ending))), "", (), ()))
    return Branch(ranks, thread, tuple(frames), _ordered(branches))


def _ordered(branches: Iterable[Branch]) -> tuple[Branch, ...]:
    return tuple(sorted(branches, key=lambda branch: (-len(branch.ranks), branch.ranks)))


def _with_a_frame(thread: ThreadStack) -> ThreadStack:
    """The same; one without a Python frame has a frame that says so, since its rank must not be left out."""
    return thread if thread.frames else replace(thread, frames=(Frame(thread.no_frame, "", 0, 0, "native", None),))


def threads_of(backtrace: Backtrace, *, all_threads: bool) -> list[tuple[str, ThreadStack]]:
    """The threads of one rank that are folded, each under the name that other ranks have for it as well.

    The one that trains, or the main thread where that is not known; another one too when it holds the GIL.
    """
    if all_threads:
        threads = [thread for thread in backtrace.threads if not thread.is_probe]
        return [(thread.thread or "(unnamed)", _with_a_frame(thread)) for thread in threads]
    trains = [thread for thread in backtrace.threads if thread.is_training]
    main = trains or [thread for thread in backtrace.threads if thread.is_main]
    holders = [thread for thread in backtrace.threads if thread.holds_gil and thread not in main]
    return [
        *(("", _with_a_frame(thread)) for thread in main[:1]),
        *((f"holds the GIL: {thread.thread or '(unnamed)'}", thread) for thread in holders),
    ]
