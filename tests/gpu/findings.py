"""What a run has measured, against what: one line for each check, in a table at the end and in a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

__all__ = ["VARIABLE", "Findings", "render", "write_line"]

#: Name of the file that gets each line as soon as it is known, so that a run cut short leaves what it saw.
VARIABLE = "PROBE_GPU_REPORT"

Line = tuple[str, str, str, str, str]  # test, what, measured, against, verdict


class Findings:
    """The checks of one test. A check that fails does not end the test: the others are worth as much."""

    def __init__(self, test: str, lines: list[Line]) -> None:
        self._test = test
        self._lines = lines
        self.failures: list[str] = []

    def check(self, what: str, measured: object, against: object, ok: object) -> None:
        """Note one comparison; the test fails at its end if it is not `ok`."""
        self._note(what, measured, against, "holds" if ok else "FAILS")
        if not ok:
            self.failures.append(f"{what}: measured {measured}, against {against}")

    def same(self, what: str, measured: object, against: object) -> None:
        """Check that two things are equal."""
        self.check(what, measured, against, measured == against)

    def within(
        self, what: str, measured: float | None, against: float | None, share: float, slack: float = 0.0
    ) -> None:
        """Check that a number is within `share` of another one, or within `slack` of it."""
        if measured is None or against is None:
            self.check(what, measured, against, False)
            return
        ok = abs(measured - against) <= max(abs(against) * share, slack)
        self.check(what, f"{measured:.6g}", f"{against:.6g} (±{share:.0%})", ok)

    def seen(self, what: str, measured: object, about: object = "-") -> None:
        """Note a figure that has no limit."""
        self._note(what, measured, about, "seen")

    def _note(self, what: str, measured: object, against: object, verdict: str) -> None:
        line = (self._test, what, _short(measured), _short(against), verdict)
        self._lines.append(line)
        write_line(line)


def write_line(line: Sequence[str]) -> None:
    """Append one line of the table to the file, if there is to be one."""
    path = os.environ.get(VARIABLE)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write("| " + " | ".join(cell.replace("|", "¦").replace("\n", " ") for cell in line) + " |\n")


def render(lines: Sequence[Line]) -> list[str]:
    """Return the lines as columns of text."""
    widths = [min(60, max(len(line[at]) for line in lines)) for at in range(5)]
    cut = [[cell[:width].ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return ["  ".join(cells).rstrip() for cells in cut]


def _short(value: object) -> str:
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return text if len(text) <= 240 else text[:237] + "…"
