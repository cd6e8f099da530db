"""Stacks of a rank's training thread, for the rules that name lines of the job: a dozen over one step, and a few dozen
over several steps where one of the dozen is what the rule looks for.

Read from outside, so the rank neither stops nor runs code of ours for it. Runs in the CLI on its event loop, once for
all rules.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from probe_agent.errors import ProbeError
from probe_agent.wire import Frame, ThreadStack
from probe_cli.client import Client
from probe_cli.cluster.folded import job_frame
from probe_cli.cluster.hang.text import is_library
from probe_cli.cluster.stacks import ask_stacks
from probe_cli.text import percent

from .finding import Certainty, Finding, NoEvidence, NotApplicable
from .job import Job
from .rule import Limits, Look, Row

__all__ = [
    "FORMATS", "ON_A_FREE_HOST", "STEPS", "Stack", "first_of", "first_stacks", "is_waiting", "line_of", "lines_of",
    "look_for", "meanwhile", "slept", "stacks_of", "stacks_of_a_pause", "suspected", "suspected_on_a_free_host",
    "waits",
]  # fmt: skip

#: A first look is as long as a step, but not shorter than this, and has so many stacks: what takes a quarter of the
#: time is missed in one of thirty of them, what takes a third in one of a hundred.
FIRST_S, FIRST = 0.3, 12
#: The longer look is as long as four steps, within these bounds.
LEAST_WATCH_S, WATCH_S = 0.8, 2.0
#: Pauses of the same length keep pace with steps: of a job of 20 ms a step, sampled every 40 ms, eight stacks in a row
#: were in the same line. They are random, with this mean.
PAUSE_S = 0.015
GRACE_S = 8.0
#: A share within so many standard deviations of what is looked for may be on the other side of it: 24 stacks put a
#: quarter of the time below 15 % once in nine times. Another look of so many seconds decides.
CLOSE, DECIDE_S = 1.5, 1.2

#: The file in which torch makes text of a tensor, for which it reads its values.
FORMATS = re.compile(r"/torch/_tensor_str\.py$")
#: Fewer stacks than this tell no shares.
ENOUGH = 8
#: Recent steps, for `suspected`.
STEPS = """
SELECT count(*) AS steps, sum(duration) AS lasted, sum(coalesce(other, 0)) AS other,
    sum(coalesce(forward, 0)) AS forward, sum(coalesce(optimizer, 0)) AS optimizer,
    count(*) FILTER (backward > 0) AS trained
FROM (FROM python.steps ORDER BY step DESC LIMIT 200)
"""
#: The same, with the part of the last minute in which some task of the host waited for a core.
ON_A_FREE_HOST = f"""
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
CALLS = re.compile(r"\.(get|acquire|recv(_bytes|_into|from)?)\(")
#: `with self.lock:`, `with lock, torch.no_grad():`, first of a name and not of a call.
LOCKS = re.compile(r"^\s*with [\w.]+(\[[^\]]+\])?\s*[:,]")


@dataclass(frozen=True)
class Stack:
    """The training thread at one moment."""

    #: Innermost first.
    frames: Sequence[Frame]
    holds_gil: bool | None = None
    #: What the kernel says of it: running, which it also is while it waits for a core, sleeping, …
    state: str | None = None
    #: The job's other threads at that moment.
    others: Sequence[ThreadStack] = ()
    #: CPU time of the training thread so far, and when that was read, in seconds.
    cpu_s: float | None = None
    at: float = 0.0


def suspected(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    """Suspect a line of the loop where the phases in which Python runs are as long as what is looked for.
    Raises NoEvidence."""
    (row,) = rows
    if row["steps"] < limits["steps"]:
        raise NoEvidence(f"{row['steps']} steps recorded, {limits['steps']:.0f} needed: ask again later")
    if (row["other"] + row["forward"] + row["optimizer"]) / row["lasted"] >= limits["share"]:
        yield Finding("a line of the loop may take long", Certainty.SUSPECTED, cost_s=row["lasted"] / row["steps"])


def suspected_on_a_free_host(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    """The same, for what a thread waits for. Raises NotApplicable for a server, NoEvidence on a busy host."""
    if rows[0]["trained"] * 2 < rows[0]["steps"]:
        raise NotApplicable("the job does not train: a server waits for requests")
    if (rows[0]["pressure"] or 0.0) >= limits["pressure"]:
        raise NoEvidence("tasks of this host wait for a core all the time, those that are waited for as well")
    yield from suspected(rows, limits)


def look_for(
    is_wanted: Callable[[Stack], bool],
    does: str,
    advice: tuple[str, ...],
    try_first: str,
    more: Callable[[Sequence[Stack]], Iterable[str]] = lambda stacks: (),
    at_most: Callable[[Sequence[Stack]], float] = lambda stacks: 1.0,
    who: str = "the training thread",
) -> Look:
    """Return the second look that finds the lines whose stacks are wanted: "`who` `does` 30 % of the time".
    `more` is what else the stacks tell, as evidence, `at_most` a share that it cannot exceed."""

    async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
        told = []
        for one in found[:1]:
            stacks = await stacks_of(job, one, is_wanted)
            if not stacks:
                raise NoEvidence("the stack of the training thread could not be read often enough: ask again later")
            if _is_close(sum(map(is_wanted, stacks)), len(stacks), limits["share"]):
                stacks = stacks + await _yet_more(job, one.ranks[0])
            lines = lines_of(stacks, is_wanted)
            share = min(sum(part for _, part in lines), at_most(stacks))
            if share >= limits["share"]:
                told.append(
                    replace(
                        one,
                        sentence=f"{who} {does} {percent(share)} of the time",
                        certainty=Certainty.LIKELY,
                        cost_s=share * (one.cost_s or 0.0),
                        share=share,
                        where=lines[0][0],
                        evidence=(
                            *(f"{percent(part)} of the stacks: {line}" for line, part in lines[:4]),
                            *more(stacks),
                        ),
                        advice=advice,
                        try_first=try_first,
                    )
                )
        return told

    return look


async def stacks_of(job: Job, found: Finding, is_wanted: Callable[[Stack], bool]) -> list[Stack]:
    """What the training thread of the rank that was found was in; empty where too little was seen. The longer look is
    for a thread that was in what is wanted at least once."""
    rank, step_s = found.ranks[0], (found.cost_s or 0.0) / (found.share or 1.0)
    stacks = await job.once(first_of(rank), lambda: _ask(job, rank, FIRST_S, FIRST))
    if step_s > FIRST_S:
        rest_s = min(WATCH_S, step_s) - FIRST_S
        stacks = stacks + await job.once(f"stacks of a step of {rank}", lambda: _ask(job, rank, rest_s, ENOUGH))
    if any(map(is_wanted, stacks)):
        more_s = max(LEAST_WATCH_S, min(WATCH_S, 4 * step_s)) - FIRST_S
        stacks = stacks + await job.once(f"more stacks of {rank}", lambda: _ask(job, rank, more_s, 2 * ENOUGH))
    return stacks if len(stacks) >= ENOUGH else []


def _is_close(wanted: int, stacks: int, share: float) -> bool:
    """Whether the true share may lie on either side of `share`; without a wanted stack it is below."""
    return wanted > 0 and abs(wanted - share * stacks) < CLOSE * math.sqrt(stacks * share * (1 - share))


async def _yet_more(job: Job, rank: int) -> list[Stack]:
    more: list[Stack] = await job.once(f"yet more stacks of {rank}", lambda: _ask(job, rank, DECIDE_S, 2 * ENOUGH))
    return more


async def stacks_of_a_pause(job: Job, rank: int) -> list[Stack]:
    """Return what the training thread was in for two seconds, in which it may pause or not."""
    stacks: list[Stack] = await job.once(f"stacks of a pause of {rank}", lambda: _ask(job, rank, WATCH_S, ENOUGH))
    return stacks


def first_of(rank: int) -> str:
    """Return the name of the first look at a rank, for `Job.once`."""
    return f"stacks of {rank}"


async def first_stacks(client: Client) -> list[Stack]:
    """Return the stacks of a first look, for one that is taken while a target is asked for its evidence."""
    return await _sampled(client, FIRST_S, FIRST)


async def _ask(job: Job, rank: int, watch_s: float, enough: int) -> list[Stack]:
    told = await job.ask(
        lambda client: _sampled(client, watch_s, enough), job.endpoints_of([rank])[:1], timeout_s=watch_s + GRACE_S
    )
    return next(iter(told.values()), [])


async def _sampled(client: Client, watch_s: float, enough: int) -> list[Stack]:
    """Stacks for so long; on a busy host for longer, until there are `enough`. From outside, no thread is known to be
    the one that trains: that is asked of the recorder first."""
    found: list[Stack] = []
    try:
        trains = {thread.ident for thread in (await ask_stacks(client)).threads if thread.is_training}
        began = time.monotonic()
        while (now := time.monotonic() - began) < watch_s or (len(found) < enough and now < WATCH_S):
            told = await ask_stacks(client, all_threads=True, outside=True)
            threads = [thread for thread in told.threads if thread.frames and not thread.is_probe]
            one = next((each for each in threads if (each.ident in trains if trains else each.is_main)), None)
            if one is not None:
                others = tuple(each for each in threads if each is not one)
                found.append(Stack(one.frames, one.holds_gil, one.state, others, one.cpu_s, time.monotonic()))
            await asyncio.sleep(random.uniform(0, 2 * PAUSE_S))
    except ProbeError:
        pass  # a target that ends or hangs meanwhile tells no more
    return found


def lines_of(stacks: Sequence[Stack], is_wanted: Callable[[Stack], bool]) -> list[tuple[str, float]]:
    """The job's innermost lines of the stacks that are wanted, `read (data.py:7): for row in rows`, each with its part
    of all stacks, the most frequent first."""
    found = Counter(line for stack in stacks if is_wanted(stack) and (line := line_of(stack.frames)) is not None)
    return [(line, count / len(stacks)) for line, count in found.most_common()]


def slept(stacks: Sequence[Stack]) -> float:
    """Return the part of the time between the first and the last stack in which the training thread had no CPU; 0
    where that is not known. Frames and state of a stack are of two moments: one alone does not tell why it slept."""
    known = [(stack.at, stack.cpu_s) for stack in stacks if stack.cpu_s is not None]
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return 0.0
    (began, before), (ended, after) = known[0], known[-1]
    return max(0.0, 1 - (after - before) / (ended - began))


def is_waiting(frames: Sequence[Frame]) -> bool:
    """Return whether a thread waits in one of Python's own waits: a queue, a lock, a socket."""
    if not frames:
        return False
    line = frames[0].source or ""
    return bool(WAITS.search(frames[0].file) or CALLS.search(line) or LOCKS.match(line))


def waits(stack: Stack) -> bool:
    """Return whether the training thread sleeps in a wait that began in the job's own code and not inside torch."""
    if stack.holds_gil or stack.state == "running" or not is_waiting(stack.frames):
        return False
    for frame in stack.frames:
        if "/torch/" in frame.file:
            return False
        if not is_library(frame.file):
            return True
    return False


def meanwhile(stacks: Sequence[Stack]) -> Iterable[str]:
    """Lines of the threads that work while the training thread waits, the most frequent one first."""
    waiting = [stack for stack in stacks if waits(stack)]
    found: Counter[tuple[str, str]] = Counter()
    for stack in waiting:
        for thread in stack.others:
            if not is_waiting(thread.frames) and (line := line_of(thread.frames)) is not None:
                found[thread.thread or "(unnamed)", line] += 1
    for (name, line), count in found.most_common(3):
        yield f"thread {name} meanwhile, {percent(count / len(waiting))}: {line}"


def line_of(frames: Sequence[Frame]) -> str | None:
    """The job's innermost line of a stack; None if it has none."""
    place = job_frame(frames)
    if place is None:
        return None
    number = re.search(r":(\d+)\)$", place)
    line = next((frame.source for frame in frames if number and frame.lineno == int(number[1]) and frame.source), None)
    return f"{place}: {line.strip()}" if line else place
