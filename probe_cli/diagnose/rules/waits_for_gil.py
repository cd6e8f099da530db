"""The training thread waits for the GIL, which another thread of the job holds.

A thread that runs Python all the time, a monitor that polls or a decoder in a thread, lets go of the GIL every 5 ms at
the soonest. torch lets go of it in every operator, and then waits for it: a model of a hundred layers pays half a
second a step, and no profiler of the operators shows it. The stacks of all threads, read from outside, tell who holds
it while the training thread sleeps.

Not counted are the calls in which that thread waits for something else: a queue, a lock, a collective, a backward on a
device. Probe's own threads are no thread of the job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from probe_agent.wire import ThreadStack
from probe_cli.diagnose.rule import Rule, Threshold, of_each_rank
from probe_cli.diagnose.sampling import ON_A_FREE_HOST, Stack, is_waiting, line_of, look_for, suspected_on_a_free_host
from probe_cli.text import percent

__all__ = ["RULE"]

#: Where torch itself waits, without the GIL.
TORCH_WAITS = re.compile(r"/torch/(distributed|autograd|cuda|utils/data|futures)/|/torch/_tensor\.py$")
#: Calls of the job that sleep, without the GIL.
SLEEPS = re.compile(r"\b(sleep|wait|join|select|poll|synchronize|item|cpu|tolist|numpy|read|write|flush|fsync)\(")


def _holder(stack: Stack) -> ThreadStack | None:
    return next((thread for thread in stack.others if thread.holds_gil), None)


def _waits(stack: Stack) -> bool:
    """Return whether the training thread sleeps in none of the known waits while another thread holds the GIL."""
    if stack.holds_gil or stack.state != "sleeping" or not stack.frames or _holder(stack) is None:
        return False
    innermost = stack.frames[0]
    known = TORCH_WAITS.search(innermost.file) or SLEEPS.search(innermost.source or "")
    return not known and not is_waiting(stack.frames)


def _held_by(stacks: Sequence[Stack]) -> Iterable[str]:
    """The threads that hold it, each with its line, the most frequent one first."""
    waiting = [stack for stack in stacks if _waits(stack)]
    holders = [thread for stack in waiting if (thread := _holder(stack)) is not None]
    found = Counter(
        (thread.thread or "(unnamed)", line_of(thread.frames) or "no line of the job") for thread in holders
    )
    for (name, line), count in found.most_common(3):
        yield f"held by thread {name}, {percent(count / len(waiting))}: {line}"


RULE = Rule(
    "waits-for-gil",
    "speed",
    "Does the training thread wait for the GIL?",
    ON_A_FREE_HOST,
    of_each_rank(suspected_on_a_free_host),
    (
        Threshold("share", 0.2, "share of the training thread's time"),
        Threshold("pressure", 0.9, "share of the time in which tasks wait for a core, from which nothing is judged"),
        Threshold("steps", 20, "steps needed to judge"),
    ),
    explains=("waits-for-thread",),
    look=look_for(
        _waits,
        "waits for the GIL, which another thread holds,",
        (
            "move what that thread does into a process: a DataLoader's worker, multiprocessing, subprocess",
            "let it sleep between its looks: time.sleep(0.1), not a loop that polls",
            "let it call NumPy or torch on large pieces: these let go of the GIL while they compute",
        ),
        "probe PID profile --cpu 5s",
        _held_by,
    ),
    on_host=True,
)
