"""Lines that leak in a target: the question, and the sentence about what came back.

Runs in the CLI. Leaving early (Ctrl-C) ends the tracing at the other end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from probe_agent.errors import NoAnswer
from probe_agent.wire import LeaksLine, LeaksRequest
from probe_cli.client import Client
from probe_cli.text import mebibytes

__all__ = ["Leak", "Leaks", "ask_leaks", "sentence"]


@dataclass(frozen=True)
class Leak:
    """A line of code that keeps what it has allocated in the window; sizes in MiB."""

    kind: str
    file: str
    lineno: int
    func: str | None
    #: Objects, and what has been added since the first third of the window.
    num: int
    mib: float
    more: int
    growth: float
    grows: bool
    #: Tensors among them that keep their autograd graph, and with it activations.
    graphs: int
    holder: str | None
    source: str | None

    @property
    def keeps_graphs(self) -> bool:
        return self.grows and self.graphs > 0


@dataclass(frozen=True)
class Leaks:
    """What a window has shown."""

    lines: tuple[Leak, ...]
    steps: int
    seconds: float
    pause_s: float
    notes: tuple[str, ...]

    @property
    def growing(self) -> list[Leak]:
        return [leak for leak in self.lines if leak.grows]

    def rate(self, leak: Leak) -> str:
        """What the line has kept, by step or by second."""
        per, unit = (self.steps, "a step") if self.steps > 0 else (self.seconds, "a second")
        num = f"{leak.num / per:.3g}"
        what = ("tensor" if leak.kind == "tensor" else "block") + ("" if num == "1" else "s")
        return f"{num} {what} and {mebibytes(leak.mib / per)} {unit}"


def ask_leaks(wanted: LeaksRequest, note: Callable[[str], None]) -> Callable[[Client], Awaitable[Leaks]]:
    """The question; `note` is told what it costs as soon as the target says so."""

    async def ask(client: Client) -> Leaks:
        found: list[Leak] = []
        end, said = None, "it broke off"
        answer = client.lines(LeaksLine, "/v1/memory/leaks", wanted)
        async with contextlib.aclosing(answer) as lines:  # type: ignore[type-var]  # a generator, as its type does not say
            async for line in lines:
                if line.note is not None:
                    said = line.note
                    note(f"{client.endpoint}: {line.note}")
                if line.rows is not None and line.columns is not None:
                    names = [{"size": "mib"}.get(name, name) for name in line.columns]
                    found += [Leak(**dict(zip(names, row, strict=True))) for row in line.rows]  # type: ignore[arg-type]
                end = line if line.done else end
        if end is None:
            raise NoAnswer(f"{client.endpoint} did not finish the window: {said}", "see: probe list --dead")
        return Leaks(tuple(found), end.steps or 0, end.seconds or 0.0, end.pause or 0.0, end.notes)

    return ask


def sentence(leaks: Leaks) -> str:
    """The line that leaks most; tensors that keep their graph come first, for the graph is not in their size."""
    span = f"{leaks.steps:,} steps" if leaks.steps > 0 else f"{leaks.seconds:.0f} s"
    if not leaks.growing:
        return f"no line keeps more and more memory over {span}"
    worst = leaks.growing[0]
    place = f"{worst.file.rpartition('/')[2]}:{worst.lineno}"
    text = f"{place} keeps {leaks.rate(worst)}, over {span}"
    if worst.keeps_graphs:
        text += "; each tensor keeps its autograd graph, with the activations of its step"
    if worst.holder:
        text += f"; held in {worst.holder}"
    others = _places(leaks.growing[1:], worst)
    return text + (f"; {len(others)} more lines grow: {', '.join(others[:3])}" if others else "")


def _places(leaks: Sequence[Leak], worst: Leak) -> list[str]:
    """The other lines, each once."""
    known = {(worst.file, worst.lineno)}
    places = dict.fromkeys((leak.file, leak.lineno) for leak in leaks)
    return [f"{file.rpartition('/')[2]}:{lineno}" for file, lineno in places if (file, lineno) not in known]
