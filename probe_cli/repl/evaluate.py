"""One evaluation in a target, from the request to the screen; `eval` and `repl` share it.

Runs in the CLI on its event loop. Leaving it early (Ctrl-C) closes the stream, which cancels the code in the target.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from probe_agent.errors import NoAnswer
from probe_agent.wire import EvalLine, EvalRequest
from probe_cli.client import Client
from probe_cli.cluster.eval_output import EvalOutput, Piece
from probe_cli.messages import remark

__all__ = ["Outcome", "evaluate", "print_output"]


@dataclass
class Outcome:
    """How the code ended, and its output when that was not to be printed at once."""

    state: str = ""
    kept: list[Piece] = field(default_factory=list)

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
    taken = EvalOutput(request.timeout_s)
    lines = client.lines(EvalLine, "/v1/eval", request)
    try:
        async for line in lines:
            pieces = taken.take(line)
            outcome.state = taken.state
            if live:
                for stream, text in pieces:
                    print_output(stream, text)
            else:
                outcome.kept += pieces
    finally:
        await lines.aclose()  # type: ignore[attr-defined]  # an async generator, as its type does not say
    if not outcome.state:
        raise NoAnswer(
            f"{client.endpoint} broke off before the code had ended: the process ended, or was detached",
            "see: probe list --dead",
        )
    return outcome
