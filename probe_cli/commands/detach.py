"""`probe PID detach`: takes the recorder out again."""

from __future__ import annotations

import click

from probe_cli.options import timeout_option
from probe_cli.session import Session, remark

__all__ = ["command"]


@click.command("detach", short_help="Take the recorder out of the target again.")
@timeout_option(10.0, "How long to wait until it is out.")
@click.pass_obj
def command(session: Session, timeout_s: float) -> int:
    """Take the recorder out of the target: no hook, thread, file or patched function stays."""
    from probe_agent.wire import Detached
    from probe_cli.client import Client

    async def question(client: Client) -> Detached:
        return await client.send(Detached, "POST", "/v1/detach")

    session.inject = False  # to attach in order to detach would be silly
    answers = session.ask(question, timeout_s=timeout_s)
    for _, answer in answers.answered:
        remark(f"detached from {answer.detached}")
    return answers.exit_code
