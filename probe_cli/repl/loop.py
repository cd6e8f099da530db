"""Reads a statement, runs it in the target, shows what came of it; until the input ends.

Runs in the CLI on its event loop, with one connection for all statements. Ctrl-C stops the statement that runs.
"""

from __future__ import annotations

import gc

from probe_agent.errors import BadRequest, NoAnswer, ProbeError
from probe_agent.wire import CompletionRequest, Completions, EvalRequest
from probe_cli.client import Client
from probe_cli.client.loop import interruptible
from probe_cli.repl.evaluate import evaluate
from probe_cli.session import Session, remark

from .lines import statements

__all__ = ["repl"]


def repl(session: Session, name: str, at_step: bool) -> int:
    """Talk with the one target of `session`. Exit code 1 when a statement of a piped script failed."""
    if session.num_endpoints > 1:
        raise BadRequest("the repl talks to one target at a time", "name one endpoint")
    gc.set_threshold(700)  # unlike the short commands, this one lives long
    answers = session.ask(lambda client: _converse(client, name, at_step), timeout_s=None, ctrl_c=False)
    return answers.answered[0][1]


async def _converse(client: Client, name: str, at_step: bool) -> int:
    async def complete(text: str) -> tuple[str, ...]:
        try:
            return (await client.send(Completions, "POST", "/v1/complete", CompletionRequest(text, name))).matches
        except ProbeError:
            return ()  # no completion is an answer too, and the prompt is no place for an error

    exit_code = 0
    async for statement in statements(complete):
        try:
            outcome = await interruptible(evaluate(client, EvalRequest(statement, name, None, at_step), live=True))
            exit_code = max(exit_code, outcome.exit_code)
        except KeyboardInterrupt:
            remark("\nstopped")
        except NoAnswer:
            raise
        except ProbeError as error:
            remark(f"probe: {error.message}" + (f"\ntry: {error.hint}" if error.hint else ""))
            exit_code = max(exit_code, error.exit_code)
    return exit_code
