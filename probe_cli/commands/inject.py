"""`probe PID inject`: puts the recorder into a running process."""

from __future__ import annotations

import time
from functools import partial

import click

from probe_agent.errors import AttachDelayed, AttachRefused, BadRequest
from probe_cli.client.attach import attach
from probe_cli.client.loop import run
from probe_cli.cluster.ranks.launched import unprepared
from probe_cli.cluster.stacks import ask_stacks
from probe_cli.endpoint import LocalProcess
from probe_cli.messages import print_error, remark
from probe_cli.options import timeout_option
from probe_cli.progress import progress
from probe_cli.render.stacks import show_stacks
from probe_cli.session import Session

__all__ = ["command"]


@click.command("inject")
@click.argument("pid", required=False, type=int)
@timeout_option(10.0, "How long to wait until the recorder answers.")
@click.option("--risk-seccomp", is_flag=True, help="Attach even if a seccomp filter of the process may kill it.")
@click.pass_obj
def command(session: Session, pid: int | None, timeout_s: float, risk_seccomp: bool) -> int:
    """Put the recorder into a running Python process. A second time is a no-op.

    With --all also into the other ranks of its job on this host. Other commands do this by themselves for a bare PID;
    `probe doctor PID` says what would prevent it. If the recorder has to wait for the GIL, the exit code is 4 and the
    stacks show who holds it; the recorder starts when it is released.
    """
    if not session.inject:
        raise BadRequest("--no-inject forbids what inject does", "leave out --no-inject")
    num_failed = 0
    processes = session.processes(pid)
    if session.everyone:
        for process in tuple(processes):
            others = run(unprepared(process, processes, ()))
            if others.processes:
                remark(str(others))
            processes += [one.pid for one in others.processes]
    for process in processes:
        started = time.perf_counter()
        try:
            with progress(f"attaching to {process}"):
                attached = run(attach(process, timeout_s=timeout_s, risk_seccomp=risk_seccomp))
        except AttachRefused as refusal:
            num_failed += 1
            print_error(refusal)
            if isinstance(refusal, AttachDelayed):
                only_this = Session(named=(LocalProcess(process),), inject=False)
                question = partial(ask_stacks, outside=True)
                show_stacks(only_this.ask(question, timeout_s=timeout_s, needs_agent=False), as_json=False)
            continue
        took_ms = (time.perf_counter() - started) * 1e3
        remark(
            f"{process} was attached already"
            if attached.already
            else f"attached to {process} in {took_ms:.0f} ms ({attached.how})"
        )
    return 0 if not num_failed else 4 if num_failed == len(processes) else 3
