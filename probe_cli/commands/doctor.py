"""`probe doctor PID`: what would stop an attach, and the remedy."""

from __future__ import annotations

import click

from probe_agent.errors import ProbeError
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
    from probe_cli.client.host_server import running_server
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
    for problem in _server_problems(processes):
        remark(problem)
    remark(running_server() or "host server: none runs")
    return 1 if stopped else 0


def _server_problems(processes: list[int]) -> list[str]:
    """Why host servers that these were to start do not run, or why none can be started to ask."""
    from probe_agent.wire import TargetList
    from probe_cli.client import open_host
    from probe_cli.client.loop import run

    async def question() -> TargetList:
        async with open_host() as client:
            return await client.get(TargetList, "/v1/targets")

    try:
        targets = run(question()).targets
    except ProbeError as error:
        return [f"host server: {error.message}\ntry: {error.hint}"]
    asked = [target for target in targets if target.pid in processes and target.server_problem]
    return [f"pid {target.pid}: {target.server_problem}" for target in asked]
