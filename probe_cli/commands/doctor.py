"""`probe doctor PID`: what would prevent an attach, and the remedy."""

from __future__ import annotations

import click

from probe_agent.errors import ProbeError
from probe_agent.wire import TargetList
from probe_cli.client import open_host
from probe_cli.client.attach import examine
from probe_cli.client.host_server import running_server
from probe_cli.client.loop import run
from probe_cli.cluster.fanout import Answers
from probe_cli.endpoint import LocalProcess
from probe_cli.messages import error_text, remark
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
    problems = _server_problems()
    notes = [(at, problems[at.pid]) for at, _ in found.answered if isinstance(at, LocalProcess) and at.pid in problems]
    show_answers(found, sheets, format_, notes)
    return 0 if all(check.ok for _, checks in found.answered for check in checks) else 1


def _server_problems() -> dict[int, str]:
    """Print which host server runs, or why none can be started; return why those do not run that targets were to
    start."""

    async def question() -> TargetList:
        async with open_host() as client:
            return await client.get(TargetList, "/v1/targets")

    try:
        targets = run(question()).targets
    except ProbeError as error:
        remark(error_text(error.message, error.hint))
        return {}
    remark(running_server())
    return {target.pid: f"pid {target.pid}: {target.server_problem}" for target in targets if target.server_problem}
