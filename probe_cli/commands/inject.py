"""`probe PID inject`: puts the recorder into a running process."""

from __future__ import annotations

import click

from probe_cli.session import Session, remark

__all__ = ["command"]


@click.command("inject", short_help="Attach to a running process now.")
@click.argument("pid", required=False, type=int)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until the recorder answers.",
)
@click.option(
    "--risk-seccomp", is_flag=True, help="Attach even where a seccomp filter of the process may kill it for that."
)
@click.pass_obj
def command(session: Session, pid: int | None, timeout_s: float, risk_seccomp: bool) -> int:
    """Put the recorder into a running Python process. A second time is a no-op.

    Other commands do this by themselves for a bare PID; `probe doctor PID` says what would stop it. When the agent has
    to wait for the GIL, exit code 4 says so, and the stacks show who holds it; the agent starts when it is released.
    """
    import time

    from probe_agent.errors import AttachDelayed, AttachRefused, ProbeError
    from probe_cli.client.attach import attach
    from probe_cli.client.loop import run
    from probe_cli.endpoint import LocalProcess
    from probe_cli.locating import show_stacks

    if not session.inject:
        raise click.UsageError("--no-inject forbids what inject does")
    failures: list[ProbeError] = []
    processes = session.processes(pid)
    for process in processes:
        started = time.perf_counter()
        try:
            attached = run(attach(process, timeout_s=timeout_s, risk_seccomp=risk_seccomp))
        except AttachRefused as refusal:
            failures.append(refusal)
            remark(f"probe: {refusal.message}" + (f"\ntry: {refusal.hint}" if refusal.hint else ""))
            if isinstance(refusal, AttachDelayed):
                only_this = Session(named=(LocalProcess(process),), inject=False)
                show_stacks(only_this, all_threads=False, as_json=False, timeout_s=timeout_s, outside=True)
            continue
        took_ms = (time.perf_counter() - started) * 1e3
        remark(
            f"{process} was attached already"
            if attached.already
            else f"attached to {process} in {took_ms:.0f} ms ({attached.how})"
        )
    return 0 if not failures else 4 if len(failures) == len(processes) else 3
