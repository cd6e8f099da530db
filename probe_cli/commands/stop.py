"""`probe stop`: ends the host server of this user on this host."""

from __future__ import annotations

import click

from probe_agent.errors import BadRequest
from probe_cli.client.host_server import describe, stop_server
from probe_cli.messages import remark
from probe_cli.session import Session

__all__ = ["command"]


@click.command("stop")
@click.pass_obj
def command(session: Session) -> int:
    """End this user's host server, whether a command or `probe serve` has started it. Running queries end too.

    Targets keep recording, and the next command starts a new server. To take the recorder out of a target: probe PID
    detach.
    """
    if session.named:
        raise BadRequest(
            f"stop ends the host server of this host, and {session.named[0]} is named",
            "leave it out; to take the recorder out of a target: probe PID detach",
        )
    stopped = stop_server()
    remark("no host server runs" if stopped is None else f"ended the host server ({describe(stopped)})")
    return 0
