"""The folded stacks of many ranks, as people read them: outermost frame first, a branch where ranks part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from probe_cli.text import num_ranks

from .terminal import bold, dim, visible

if TYPE_CHECKING:
    from probe_cli.cluster.stacks import Branch

__all__ = ["branch_json", "tree_lines"]

NAME_WIDTH = 32


def tree_lines(branches: Sequence[Branch], colour: bool) -> Iterator[str]:
    """One tree a thread."""
    for at, branch in enumerate(branches):
        if at:
            yield ""
        yield from _lines(branch, "", "", colour)


def _lines(branch: Branch, first: str, prefix: str, colour: bool) -> Iterator[str]:
    name = f"  thread {visible(branch.thread)}" if branch.thread else ""
    here = "" if branch.frames or not first else "  (goes no deeper)"
    yield f"{first}{bold(num_ranks(branch.ranks) + name, colour)}{here}"
    body = prefix + ("│  " if branch.branches else "   ")
    width = min(NAME_WIDTH, max((len(frame.func) for frame in branch.frames), default=0))
    for frame in branch.frames:
        where = f"{visible(frame.file)}:{frame.lineno}" if frame.file else ""
        yield f"{body}{visible(frame.func).ljust(width)}  {where}".rstrip()
    if branch.frames and (source := branch.frames[-1].source):  # where they are, or the last they have in common
        yield body + dim("    " + visible(source.strip()), colour)
    for at, deeper in enumerate(branch.branches, 1):
        last = at == len(branch.branches)
        yield from _lines(deeper, prefix + ("└─ " if last else "├─ "), prefix + ("   " if last else "│  "), colour)


def branch_json(branch: Branch) -> dict[str, object]:
    """The same for programs."""
    return {
        "ranks": list(branch.ranks),
        "thread": branch.thread or None,
        "frames": [
            {"func": frame.func, "file": frame.file, "lineno": frame.lineno, "source": frame.source}
            for frame in branch.frames
        ],
        "branches": [branch_json(deeper) for deeper in branch.branches],
    }
