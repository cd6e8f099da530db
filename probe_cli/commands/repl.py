"""`probe … repl`: a Python prompt in the target."""

from __future__ import annotations

import click

from probe_cli.repl import repl
from probe_cli.session import Session

__all__ = ["command"]


@click.command("repl")
@click.option(
    "--session",
    "name",
    metavar="NAME",
    default="repl",
    show_default=True,
    help="Keep what is assigned under this name.",
)
@click.option("--at-step", is_flag=True, help="Run everything on the training thread, between two steps.")
@click.pass_obj
def command(session: Session, name: str, at_step: bool) -> int:
    """Open a Python prompt in the target. Assignments last; Ctrl-C stops the running statement, Ctrl-D ends."""
    return repl(session, name, at_step)
