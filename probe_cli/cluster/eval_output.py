"""The lines of one evaluation, as pieces of output: the same for one target and for many ranks."""

from __future__ import annotations

from probe_agent.wire import EvalLine

__all__ = ["EvalOutput", "Piece"]

#: (stdout, stderr or remark; text).
Piece = tuple[str, str]


class EvalOutput:
    """Turns lines into pieces. `state` says how the code ended; it is empty until then."""

    def __init__(self, timeout_s: float | None) -> None:
        self.state = ""
        self._timeout_s = timeout_s
        self._at_line_start = True

    def take(self, line: EvalLine) -> list[Piece]:
        """What is to be printed for `line`."""
        pieces: list[Piece] = []
        if line.text:
            pieces.append((line.stream or "stdout", line.text))
            if line.stream != "stderr":
                self._at_line_start = line.text.endswith("\n")
        if line.note:
            pieces.append(("remark", line.note))
        return pieces + self._ended(line) if line.done else pieces

    def _ended(self, line: EvalLine) -> list[Piece]:
        self.state = line.state or "finished"
        pieces: list[Piece] = [] if self._at_line_start else [("stdout", "\n")]
        if line.traceback:
            pieces.append(("stderr", line.traceback if line.traceback.endswith("\n") else line.traceback + "\n"))
        if line.result is not None:
            pieces.append(("stdout", line.result + "\n"))
        if self.state == "timed out":
            pieces.append(("remark", f"stopped after {self._timeout_s:g} s" if self._timeout_s else "timed out"))
        if self.state == "cancelled":
            pieces.append(("remark", "cancelled"))
        return pieces
