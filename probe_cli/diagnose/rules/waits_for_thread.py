"""The training thread waits for another thread or process of the job.

A thread that cuts windows, unpacks an archive or fills a queue, a pool of processes, a socket: what no DataLoader does
is in no `data_wait`, and the step waits for it all the same. The stacks of the training thread, read from outside, tell
the line that it waits in, and those of the other threads what they do meanwhile. A wait inside torch is not counted:
collectives and loaders have rules of their own. Nor is a thread that has been woken and waits for a core, nor a server
that waits for requests: the steps of a job that is judged call backward.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from probe_agent.wire import Frame
from probe_cli.cluster.hang.text import is_library
from probe_cli.diagnose.finding import Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.diagnose.sampling import STEPS, Stack, line_of, look_for, suspected
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = f"""
SELECT recent.*, (SELECT avg(cpu_some) FROM host.pressure
    WHERE scope = 'host' AND ts > (SELECT max(ts) - INTERVAL 1 MINUTE FROM python.steps)) AS pressure
FROM ({STEPS}) AS recent
"""
#: Where Python itself waits.
WAITS = re.compile(
    r"/(queue|threading|selectors|socket|ssl|subprocess)\.py$|/concurrent/futures/_base\.py$"
    r"|/multiprocessing/(connection|queues|synchronize|popen_\w+)\.py$"
)
#: Calls that wait in C, where the thread does not hold the GIL.
LINE = re.compile(r"\.(get|acquire|recv(_bytes|_into|from)?)\(")


def _is_waiting(frames: Sequence[Frame]) -> bool:
    return bool(frames) and bool(WAITS.search(frames[0].file) or LINE.search(frames[0].source or ""))


def _waits(stack: Stack) -> bool:
    """Return whether the training thread sleeps in a wait that began in the job's own code and not inside torch."""
    if stack.holds_gil or stack.state == "running" or not _is_waiting(stack.frames):
        return False
    for frame in stack.frames:
        if "/torch/" in frame.file:
            return False
        if not is_library(frame.file):
            return True
    return False


def _meanwhile(stacks: Sequence[Stack]) -> Iterable[str]:
    """Lines of the threads that work while the training thread waits, the most frequent one first."""
    waiting = [stack for stack in stacks if _waits(stack)]
    found: Counter[tuple[str, str]] = Counter()
    for stack in waiting:
        for thread in stack.others:
            if not _is_waiting(thread.frames) and (line := line_of(thread.frames)) is not None:
                found[thread.thread or "(unnamed)", line] += 1
    for (name, line), count in found.most_common(3):
        yield f"thread {name} meanwhile, {percent(count / len(waiting))}: {line}"


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if rows[0]["trained"] * 2 < rows[0]["steps"]:
        raise NotApplicable("the job does not train: a server waits for requests")
    if (rows[0]["pressure"] or 0.0) >= limits["pressure"]:
        raise NoEvidence("tasks of this host wait for a core all the time, those that are waited for as well")
    yield from suspected(rows, limits)


RULE = Rule(
    "waits-for-thread",
    "speed",
    "Does the training thread wait for other threads or processes of the job?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.2, "share of the training thread's time"),
        Threshold("pressure", 0.9, "share of the time in which tasks wait for a core, from which nothing is judged"),
        Threshold("steps", 20, "steps needed to judge"),
    ),
    look=look_for(
        _waits,
        "waits for other threads or processes of the job",
        (
            "see what they do: `probe PID backtrace --all`, and the hottest lines: `probe PID profile --cpu 5s`",
            "take work out of them: unpack, decode and read once, not for each sample",
            "let several do it: a DataLoader with worker processes, where Python code runs side by side",
        ),
        "probe PID profile --cpu 5s",
        _meanwhile,
    ),
    on_host=True,
)
