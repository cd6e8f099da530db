"""The loop of the Python prompt: reads a statement, runs it in the target, prints the outcome, until the input ends.

Runs in the CLI on its event loop, with one connection for all statements. Ctrl-C stops the statement that runs.
"""

from __future__ import annotations

import gc
import sys

from probe_agent.errors import BadRequest, NoAnswer, ProbeError
from probe_agent.wire import CompletionRequest, Completions, EvalRequest
from probe_cli.client import Client
from probe_cli.client.loop import interruptible
from probe_cli.messages import print_error, remark
from probe_cli.session import Session

from .evaluate import evaluate
from .lines import piped

__all__ = ["repl"]


def repl(session: Session, name: str, at_step: bool) -> int:
    """Run a prompt in the one target of `session`. Exit code 1 if a statement of a piped script failed."""
    if session.num_endpoints > 1:
        raise BadRequest("repl takes one target, and several are named", "name one endpoint")
    gc.set_threshold(700)  # unlike the short commands, this one lives long
    answers = session.ask(lambda client: _converse(client, name, at_step), timeout_s=None, ctrl_c=False, doing="")
    return answers.answered[0][1]


async def _converse(client: Client, name: str, at_step: bool) -> int:
    async def complete(text: str) -> tuple[str, ...]:
        try:
            return (await client.send(Completions, "POST", "/v1/complete", CompletionRequest(text, name))).matches
        except ProbeError:
            return ()  # no completion is an answer too, and the prompt is no place for an error

    if sys.stdin.isatty() and sys.stdout.isatty():
        from .prompt import typed  # a door: prompt_toolkit, 60 ms that a piped script does not need

        statements = typed(complete)
    else:
        statements = piped()
    exit_code = 0
    async for statement in statements:
        try:
            outcome = await interruptible(evaluate(client, EvalRequest(statement, name, None, at_step), live=True))
            exit_code = max(exit_code, outcome.exit_code)
        except KeyboardInterrupt:
            remark("\nstopped")
        except NoAnswer:
            raise
        except ProbeError as error:
            print_error(error)
            exit_code = max(exit_code, error.exit_code)
    return exit_code
