"""`probe … backtrace`: where the target is, with the source line of every frame."""

from __future__ import annotations

import click

from probe_cli.options import timeout_option
from probe_cli.session import Session

__all__ = ["command"]


@click.command("backtrace", short_help="Show where the target is, with source lines.")
@click.option("--all", "all_threads", is_flag=True, help="Every thread, not only the main one.")
@click.option("--all-ranks", is_flag=True, help="Of every rank behind the endpoints, equal stacks folded into a tree.")
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON; an array when several were asked.")
@timeout_option(10.0, "How long to wait for the answer.")
@click.pass_obj
def command(session: Session, all_threads: bool, all_ranks: bool, as_json: bool, timeout_s: float) -> int:
    """Show where the target is: every frame with the line being executed and its source text.

    Also works while a C call holds the GIL, and with --no-inject on a process that has no agent: the stacks are then
    read from outside, and a remark says so, and who holds the GIL.
    """
    if all_ranks:
        from probe_cli.locating_ranks import show_tree

        return show_tree(session, all_threads=all_threads, as_json=as_json, timeout_s=timeout_s)
    from probe_cli.locating import show_stacks

    return show_stacks(session, all_threads=all_threads, as_json=as_json, timeout_s=timeout_s)
