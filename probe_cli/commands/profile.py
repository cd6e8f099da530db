"""`probe … profile`: operators of some steps by torch's profiler, or the CPU's hottest lines by sampling."""

from __future__ import annotations

import click

from probe_cli.options import format_option, seconds
from probe_cli.session import Session

__all__ = ["command"]


@click.command("profile", short_help="Profile some steps, or some seconds of CPU time.")
@click.option("--steps", type=click.IntRange(1, 100), metavar="N", help="Profile exactly N steps.  [default: 3]")
@click.option("--cpu", "cpu_s", callback=seconds, metavar="TIME", help="Sample stacks for TIME instead: 10s, 2m.")
@click.option(
    "-o",
    "--out",
    "path",
    metavar="FILE",
    help="Of steps a Chrome trace for Perfetto (.json, .json.gz); of CPU time a flame graph (.svg, .html), a file for"
    " speedscope (.json), or one line a stack (.folded).",
)
@click.option("--shapes", is_flag=True, help="Of steps: tell calls with different input shapes apart.")
@click.option(
    "--memory", is_flag=True, help="Of steps: what operators allocate. On a CPU torch says a line on the job's stderr."
)
@click.option(
    "--rate", type=click.IntRange(1, 1000), default=100, show_default=True, help="Samples a second of CPU time."
)
@click.option(
    "--by",
    type=click.Choice(["function", "line"]),
    help="Of CPU time: the job's own functions or single lines.  [default: both, in other formats line]",
)
@click.option("--idle", is_flag=True, help="Of CPU time: threads that wait as well.")
@format_option()
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the steps.",
)
@click.pass_obj
def command(
    session: Session,
    steps: int | None,
    cpu_s: float | None,
    path: str | None,
    shapes: bool,
    memory: bool,
    rate: int,
    by: str | None,
    idle: bool,
    format_: str,
    timeout_s: float,
) -> int:
    """Run torch's profiler over whole steps of the thread that trains, and show its operators; they are rows of
    python.profile_ops afterwards. The profiled steps are slower, their results the same. Ctrl-C stops the profiler when
    the step ends.

    With --cpu, sample the stacks of all threads from outside, and show the job's functions (each with what libraries
    do for it) and the lines that take most. The process is not stopped, and needs no agent. Probe's own threads are
    left out; a remark says how many samples these were, and how many are lost.
    """
    from probe_agent.wire import ProfileRequest
    from probe_cli.profiling import profile_cpu, profile_steps

    if cpu_s is not None:
        if steps is not None or shapes or memory:
            raise click.UsageError("--cpu samples stacks; --steps, --shapes and --memory are for torch's profiler")
        return profile_cpu(session, cpu_s, rate, idle, path, by, format_)
    wanted = ProfileRequest(3 if steps is None else steps, timeout_s, shapes, memory, trace=path is not None)
    return profile_steps(session, wanted, path, format_)
