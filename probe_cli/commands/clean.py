"""`probe clean`: removes what targets that have ended left."""

from __future__ import annotations

import click

from probe_agent.errors import BadRequest
from probe_agent.wire import Cleaned, CleanRequest
from probe_cli.client import Client, open_host
from probe_cli.client.loop import run
from probe_cli.endpoint import Archive
from probe_cli.messages import remark
from probe_cli.options import seconds, timeout_option
from probe_cli.session import Session
from probe_cli.text import mebibytes

__all__ = ["command"]


@click.command("clean")
@click.option(
    "--older-than",
    "older_than_s",
    default="0",
    callback=seconds,
    metavar="TIME",
    help="Keep those that recorded something in the last TIME: 90 (seconds), 15m, 12h or 7d.",
)
@timeout_option(10.0, "How long to wait for the answer.")
@click.pass_obj
def command(session: Session, older_than_s: float, timeout_s: float) -> int:
    """Remove what targets of this host that have ended left in shared memory: all of them, or the PID that is named.

    Until then a target can be queried by its PID. A living one is refused: `probe PID detach` takes the recorder out.
    """

    async def question(client: Client) -> Cleaned:
        return await client.send(Cleaned, "POST", "/v1/clean", CleanRequest(older_than_s))

    async def of_this_host() -> Cleaned:
        async with open_host() as client:
            return await question(client)

    if any(isinstance(endpoint, Archive) for endpoint in session.named):
        raise BadRequest("clean takes no folder", "remove it with: rm -r FOLDER")
    if session.named:
        session.inject = False
        answers = session.ask(question, timeout_s=timeout_s)
        cleaned, code = [answer for _, answer in answers.answered], answers.exit_code
    else:
        cleaned, code = [run(of_this_host())], 0
    for one in cleaned:
        for removed in one.removed:
            remark(f"removed what pid {removed.pid} left: {mebibytes(removed.mib)}  ({' '.join(removed.command)})")
        if not one.removed:
            remark("nothing to remove" + (f"; {one.left} ended targets are not old enough" if one.left else ""))
    return code
