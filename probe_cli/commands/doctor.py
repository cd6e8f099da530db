"""`probe doctor PID`: what would stop an attach, and the remedy."""

from __future__ import annotations

import click

from probe_cli.options import format_option
from probe_cli.session import Session, remark

__all__ = ["command"]


@click.command("doctor", short_help="Say what would stop an attach; touches nothing.")
@click.argument("pid", required=False, type=int)
@format_option()
@click.pass_obj
def command(session: Session, pid: int | None, format_: str) -> int:
    """Look at a process and say what would stop an attach. Exit code 1 when something would."""
    from probe_cli.client.attach import examine
    from probe_cli.render import Sheet
    from probe_cli.render.show import heading, show

    processes = session.processes(pid)
    stopped = False
    for at, process in enumerate(processes):
        if len(processes) > 1 and format_ == "table":
            heading(str(process), first=at == 0)
        checks = examine(process)
        rows = [
            ("ok" if check.ok else "stops it", check.name, check.saw, check.remedy if not check.ok else "")
            for check in checks
        ]
        show(Sheet(("", "check", "saw", "remedy"), ("VARCHAR",) * 4, rows), format_, remark)
        stopped = stopped or not all(check.ok for check in checks)
    return 1 if stopped else 0
