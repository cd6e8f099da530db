"""One evaluation in a target, from the request to what is on the screen; `eval` and `repl` share it.

Runs in the CLI on its event loop. Leaving it early (Ctrl-C) closes the stream, which cancels the code in the target.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from probe_agent.errors import NoAnswer
from probe_agent.wire import EvalLine, EvalRequest
from probe_cli.session import remark

if TYPE_CHECKING:
    from probe_cli.client import Client

__all__ = ["Outcome", "evaluate", "print_output"]


@dataclass
class Outcome:
    """How the code ended, and its output when that was not to be printed at once."""

    state: str = ""
    kept: list[tuple[str, str]] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 when the code ran to its end, 1 when it raised or was stopped."""
        return 0 if self.state == "finished" else 1

    def show_what_was_kept(self) -> None:
        """Print what was kept: of several targets, each has its section."""
        for stream, text in self.kept:
            print_output(stream, text)


def print_output(stream: str, text: str) -> None:
    """Print a piece of a target's output where it belongs; a remark goes to stderr."""
    if stream == "remark":
        sys.stdout.flush()
        remark(text.rstrip("\n"))
        return
    out = sys.stderr if stream == "stderr" else sys.stdout
    out.write(text)
    out.flush()


async def evaluate(client: Client, request: EvalRequest, *, live: bool) -> Outcome:
    """Run `request` in the client's target; with `live` its output is printed as it comes."""
    outcome = Outcome()

    def say(stream: str, text: str) -> None:
        if live:
            print_output(stream, text)
        else:
            outcome.kept.append((stream, text))

    at_line_start = True
    lines = client.lines(EvalLine, "/v1/eval", request)
    try:
        async for line in lines:
            if line.text:
                say(line.stream or "stdout", line.text)
                if line.stream != "stderr":
                    at_line_start = line.text.endswith("\n")
            if line.note:
                say("remark", line.note)
            if line.done:
                outcome.state = line.state or "finished"
                if not at_line_start:
                    say("stdout", "\n")
                if line.traceback:
                    say("stderr", line.traceback if line.traceback.endswith("\n") else line.traceback + "\n")
                if line.result is not None:
                    say("stdout", line.result + "\n")
                if outcome.state == "timed out":
                    say("remark", f"stopped after {request.timeout_s:g} s" if request.timeout_s else "timed out")
                if outcome.state == "cancelled":
                    say("remark", "cancelled")
    finally:
        await lines.aclose()  # type: ignore[attr-defined]  # an async generator, as its type does not say
    if not outcome.state:
        raise NoAnswer(
            f"{client.endpoint} broke off before the code had ended", "did the process end? `probe list` shows it"
        )
    return outcome
