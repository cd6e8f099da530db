"""One rank of the protocol: the connection on which it holds the code, and what it prints.

Runs in the CLI on its event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field

from probe_agent.errors import NoAnswer, ProbeError
from probe_agent.wire import EvalLine, HoldRequest
from probe_cli.client import Client
from probe_cli.cluster.eval_output import EvalOutput, Piece
from probe_cli.endpoint import Endpoint

__all__ = ["Part"]


@dataclass
class Part:
    """One rank's part in it."""

    rank: int
    endpoint: Endpoint
    client: Client
    held: asyncio.Event = field(default_factory=asyncio.Event)
    #: How the code ended there; empty until then.
    state: str = ""
    #: What it has printed, in order.
    output: list[Piece] = field(default_factory=list)
    error: ProbeError | None = None

    async def listen(self, request: HoldRequest) -> None:
        """Have the code held, and take what comes until it has ended."""
        taken = EvalOutput(request.timeout_s)
        try:
            async with aclosing(self.client.lines(EvalLine, "/v1/eval/hold", request)) as lines:  # type: ignore[type-var]
                async for line in lines:
                    if line.held:
                        self.held.set()
                    for stream, text in taken.take(line):
                        self._say(stream, text)
                    self.state = taken.state
            if not self.state:
                self.error = NoAnswer(
                    f"{self.endpoint} broke off: the process ended, or was detached", "see: probe list --dead"
                )
        except ProbeError as error:
            self.error = error
        finally:
            self.held.set()

    def _say(self, stream: str, text: str) -> None:
        if stream != "remark" and self.output and self.output[-1][0] == stream:
            self.output[-1] = (stream, self.output[-1][1] + text)  # however it was cut on its way
        else:
            self.output.append((stream, text))
