"""`probe PID detach`: takes the recorder out again."""

from __future__ import annotations

import click

from probe_agent.wire import Detached, DetachRequest
from probe_cli.client import Client
from probe_cli.messages import remark
from probe_cli.options import timeout_option
from probe_cli.session import Session

__all__ = ["command"]


@click.command("detach")
@click.option("--keep", is_flag=True, help="Keep its rings, like those of a target that has ended.")
@timeout_option(10.0, "How long to wait until it is out.")
@click.pass_obj
def command(session: Session, keep: bool, timeout_s: float) -> int:
    """Take the recorder out of the target: no hook, thread, file or patched function stays.

    Its rings are removed. With --keep they stay in a folder that can be queried as an endpoint, until newer ones push
    them out or `probe clean` removes them.
    """

    async def question(client: Client) -> Detached:
        return await client.send(Detached, "POST", "/v1/detach", DetachRequest(keep))

    session.inject = False  # attaching in order to detach would be silly
    answers = session.ask(question, timeout_s=timeout_s)
    for _, answer in answers.answered:
        if answer.kept:
            remark(f"detached from {answer.detached}; its rings are kept: probe {answer.kept} tables")
        else:
            remark(f"detached from {answer.detached}; its rings are removed (to keep them: probe PID detach --keep)")
    return answers.exit_code
