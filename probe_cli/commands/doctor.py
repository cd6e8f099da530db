"""`probe doctor PID`: what would prevent an attach, and the remedy."""

from __future__ import annotations

import click

from probe_cli.client.attach import examine
from probe_cli.cluster.fanout import Answers
from probe_cli.endpoint import LocalProcess
from probe_cli.options import format_option
from probe_cli.render import Sheet
from probe_cli.render.show import show_answers
from probe_cli.session import Session

__all__ = ["command"]


@click.command("doctor")
@click.argument("pid", required=False, type=int)
@format_option()
@click.pass_obj
def command(session: Session, pid: int | None, format_: str) -> int:
    """Examine a process and say what would prevent an attach. Exit code 1 if something would."""
    found = Answers(tuple((LocalProcess(pid), examine(pid)) for pid in session.processes(pid)), ())
    sheets = []
    for endpoint, checks in found.answered:
        rows = [
            ("ok" if check.ok else "stops it", check.name, check.saw, check.remedy if not check.ok else "")
            for check in checks
        ]
        sheets.append((endpoint, Sheet(("", "check", "saw", "remedy"), ("VARCHAR",) * 4, rows, prose="remedy")))
    show_answers(found, sheets, format_)
    return 0 if all(check.ok for _, checks in found.answered for check in checks) else 1
