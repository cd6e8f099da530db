"""`probe … repl`: Python in the target, line by line."""

from __future__ import annotations

import click

from probe_cli.session import Session

__all__ = ["command"]


@click.command("repl", short_help="Talk Python with the target.")
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
    """Talk Python with the target. What is assigned lasts; Ctrl-C stops what runs, Ctrl-D ends."""
    from probe_cli.repl import repl

    return repl(session, name, at_step)
