"""The training thread waits for the GIL, which another thread of the job holds.

A thread that runs Python all the time, a monitor that polls or a decoder in a thread, lets go of the GIL every 5 ms at
the soonest. torch lets go of it in every operator, and then waits for it: a model of a hundred layers pays half a
second a step, and no profiler of the operators shows it. The stacks of all threads, read from outside, tell who holds
it, and the kernel how much of the time the training thread slept: no more than that counts.

Not counted are the calls in which that thread waits for something else: a queue, a lock, a collective, a backward on a
device. On the CPU the training thread runs backward itself, and waits for the GIL wherever a tensor that Python has
seen is freed. Probe's own threads are no thread of the job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from probe_agent.wire import ThreadStack
from probe_cli.diagnose.finding import Finding
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Look, Row, Rule, Threshold, of_each_rank
from probe_cli.diagnose.sampling import (
    ON_A_FREE_HOST,
    Stack,
    is_waiting,
    line_of,
    look_for,
    slept,
    suspected_on_a_free_host,
)
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = f"""
SELECT told.*, (SELECT count(reserved) = 0 FROM python.steps) AS on_cpu FROM ({ON_A_FREE_HOST}) AS told
"""
#: Where torch itself waits, without the GIL; on a device in backward, too.
TORCH_WAITS = re.compile(r"/torch/(distributed|cuda|utils/data|futures)/")
BACKWARD = re.compile(r"/torch/autograd/|/torch/_tensor\.py$")
#: Calls of the job that sleep, without the GIL.
SLEEPS = re.compile(r"\b(sleep|wait|join|select|poll|synchronize|item|cpu|tolist|numpy|read|write|flush|fsync)\(")


def _holder(stack: Stack) -> ThreadStack | None:
    return next((thread for thread in stack.others if thread.holds_gil), None)


def _is_known(stack: Stack) -> bool:
    """Return whether the training thread is in one of the known waits, or in backward, which a device may compute."""
    return _is_known_on_cpu(stack) or bool(BACKWARD.search(stack.frames[0].file))


def _is_known_on_cpu(stack: Stack) -> bool:
    innermost = stack.frames[0]
    known = TORCH_WAITS.search(innermost.file) or SLEEPS.search(innermost.source or "")
    return bool(known) or is_waiting(stack.frames)


def _look(is_known: Callable[[Stack], bool]) -> Look:
    """The second look, by what is a known wait."""

    def waits(stack: Stack) -> bool:
        """Return whether another thread holds the GIL and the training thread is in none of the known waits."""
        return bool(stack.frames) and not stack.holds_gil and _holder(stack) is not None and not is_known(stack)

    def slept_otherwise(stacks: Sequence[Stack]) -> float:
        known = [stack for stack in stacks if stack.frames and is_known(stack)]
        return slept(stacks) - len(known) / len(stacks)

    def held_by(stacks: Sequence[Stack]) -> Iterable[str]:
        """The threads that hold it, each with its line, the most frequent one first."""
        holders = [thread for stack in stacks if waits(stack) and (thread := _holder(stack)) is not None]
        found = Counter(
            (thread.thread or "(unnamed)", line_of(thread.frames) or "no line of the job") for thread in holders
        )
        for (name, line), count in found.most_common(3):
            yield f"held by thread {name}, {percent(count / len(holders))}: {line}"

    return look_for(
        waits,
        "waits for the GIL, which another thread holds,",
        (
            "move what that thread does into a process: a DataLoader's worker, multiprocessing, subprocess",
            "let it sleep between its looks: time.sleep(0.1), not a loop that polls",
            "let it call NumPy or torch on large pieces: these let go of the GIL while they compute",
        ),
        "probe PID profile --cpu 5s",
        held_by,
        slept_otherwise,
    )


ON_CPU, ON_DEVICE = _look(_is_known_on_cpu), _look(_is_known)


def suspect(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    for found in suspected_on_a_free_host(rows, limits):
        yield replace(found, where="CPU" if rows[0]["on_cpu"] else "device")


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    return await (ON_CPU if found[0].where == "CPU" else ON_DEVICE)(job, found, limits)


RULE = Rule(
    "waits-for-gil",
    "speed",
    "Does the training thread wait for the GIL?",
    SQL,
    of_each_rank(suspect),
    (
        Threshold("share", 0.2, "share of the training thread's time"),
        Threshold("pressure", 0.9, "share of the time in which tasks wait for a core, from which nothing is judged"),
        Threshold("steps", 20, "steps needed to judge"),
    ),
    explains=("waits-for-thread", "pauses"),
    look=look,
    on_host=True,
)
