"""Evidence on a blamed rank that its training thread's stack does not show: its loader workers, its other threads, the
store it waits for.

Runs in the CLI on its event loop, for a handful of ranks. Each worker costs its host 30 to 130 ms of py-spy; the target
is asked for nothing but the state of its job's store.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from probe_agent.errors import ProbeError
from probe_agent.wire import Backtrace, PeerList, QueryRequest, QueryResult, ThreadStack
from probe_cli.client import Client
from probe_cli.cluster.stacks import ask_stacks

from .doing import Activity, Doing, activity_of, job_frame
from .locks import holder

__all__ = ["Details", "details"]

#: More workers or threads than this are not named.
MAX_NAMED = 4
#: How often a recorder is asked that does not answer in time.
TRIES = 3
_WORKERS = "SELECT worker_pid FROM python.workers ORDER BY worker_pid"
_TRAINED = "SELECT count(*) FROM torch.parameters WHERE optimizer IS NOT NULL AND (has_gradient OR updates > 0)"
#: Another thread of the same process ends them.
_BY_THREADS = (Activity.LOCK, Activity.EVENT, Activity.FUTURE, Activity.JOIN, Activity.QUEUE)
#: What a worker that has nothing to do is not in.
_FETCH = "/utils/data/_utils/fetch.py"
#: Of the recorder's notes on the store, those that say that it gave no answer.
_FAILURE = re.compile(r"cannot (connect|send) to the job's store.*|the job's store (does not|did not|closed) .*")


@dataclass(frozen=True)
class Details:
    """What was found out about one rank."""

    sentences: tuple[str, ...] = ()
    #: It waits for a worker or a thread that works, or waits for storage.
    may_be_healthy: bool = False
    #: Why the job's store gave no answer; empty if it did, or nobody asked.
    store_failure: str = ""
    #: It waits for a lock that nobody will release.
    is_deadlock: bool = False
    #: An optimizer of it has stepped, as far as that was asked.
    has_trained: bool = False


def details(doing: Doing, timeout_s: float, *, has_stepped: bool = True) -> Callable[[Client], Awaitable[Details]]:
    """Return the question for what a rank that does this waits for; and for whether it has trained before, if it has
    ended no step since its recorder came."""

    async def ask(client: Client) -> Details:
        found = await waits_for(client)
        return found if has_stepped else replace(found, has_trained=await _has_trained(client, timeout_s))

    async def waits_for(client: Client) -> Details:
        if Activity.DATA in (doing.activity, doing.within):
            return await _workers(client, timeout_s)
        if doing.activity in _BY_THREADS:
            return await _threads(client, doing)
        if doing.activity is Activity.LOOP:
            return await _tasks(client)
        if doing.activity in (Activity.INIT, Activity.STORE):
            return await _store(client)
        return Details()

    return ask


async def _workers(client: Client, timeout_s: float) -> Details:
    try:
        told = await client.send(QueryResult, "POST", "/v1/query", QueryRequest(_WORKERS, timeout_s=timeout_s))
    except ProbeError:
        return Details()  # its host says no more of it
    pids = [int(str(row[0])) for row in told.rows]
    busy: list[tuple[int, Doing]] = []
    num_idle = 0
    for pid in pids:
        try:
            stacks = await client.get(Backtrace, "/v1/backtrace", pid=str(pid), outside="true")
        except ProbeError:
            continue  # it has ended
        main = next(thread for thread in stacks.threads if thread.is_main)
        if any(frame.file.endswith(_FETCH) for frame in main.frames) or not main.frames:
            busy.append((pid, activity_of(main)))
        else:
            num_idle += 1
    sentences = [f"its loader worker {pid} {doing}" for pid, doing in busy[:MAX_NAMED]]
    if pids and num_idle == len(pids):
        sentences = [f"its {len(pids)} loader workers have nothing to do"]
    works = any(doing.takes_long or doing.is_running or doing.activity is Activity.SLEEP for _, doing in busy)
    return Details(tuple(sentences), may_be_healthy=works)


async def _threads(client: Client, doing: Doing) -> Details:
    """The thread that holds the lock; where that is not known, the other threads that run code of the job."""
    stacks = await _all_threads(client)
    if stacks is None:
        return Details()
    held = holder(stacks) if doing.activity is Activity.LOCK else None
    if held is not None:
        return Details((held.said,), is_deadlock=held.is_deadlock)
    others = [(thread.thread or "(unnamed)", activity_of(thread)) for thread in stacks.threads if _is_of_job(thread)]
    named = [f"thread {name} {doing}" for name, doing in others[:MAX_NAMED]]
    works = any(doing.takes_long or doing.is_running for _, doing in others)
    said = f"meanwhile its {_listed(named)}" if named else "no other thread of it runs code of the job"
    return Details((said,), may_be_healthy=works)


async def _has_trained(client: Client, timeout_s: float) -> bool:
    """Return whether gradients were computed, or an optimizer has kept something of its steps."""
    try:
        told = await client.send(QueryResult, "POST", "/v1/query", QueryRequest(_TRAINED, timeout_s=timeout_s))
    except ProbeError:
        return False  # it does not answer, which others tell
    return bool(told.rows and told.rows[0][0])


async def _all_threads(client: Client) -> Backtrace | None:
    """Return the stacks of all threads, with local variables from the recorder if it answers.

    On a busy host that may take longer than its host server waits."""
    stacks = None
    for _ in range(TRIES):
        try:
            stacks = await ask_stacks(client, all_threads=True, with_locals=True)
        except ProbeError:
            break  # they may be refused
        if stacks.source == "recorder":
            return stacks
    try:
        return stacks or await ask_stacks(client, all_threads=True, outside=True)
    except ProbeError:
        return None


async def _tasks(client: Client) -> Details:
    """Return what the tasks of its event loop wait for."""
    try:
        stacks = await ask_stacks(client, tasks=True)
    except ProbeError:
        return Details()
    named = [
        f"task {task.name} waits in {frame}"
        for task in stacks.tasks
        if (frame := job_frame(task.frames)) is not None and not task.is_running
    ]
    return Details((f"its {_listed(named[:MAX_NAMED])}",) if named else ())


def _is_of_job(thread: ThreadStack) -> bool:
    """Return whether it is another thread, in which code of the job runs, or what takes long does."""
    is_other = not (thread.is_main or thread.is_training or thread.is_probe)
    return is_other and (job_frame(thread.frames) is not None or activity_of(thread).takes_long)


async def _store(client: Client) -> Details:
    """Have the recorder ask the job's store now, for at most a second."""
    try:
        told = await client.get(PeerList, "/v1/peers", again="true")
    except ProbeError:
        return Details()  # an earlier recorder, or a silent one
    failure = next((found[0] for note in told.notes if (found := _FAILURE.search(note))), "")
    return Details((failure,) if failure else (), store_failure=failure)


def _listed(parts: Iterable[str]) -> str:
    return ", its ".join(parts)
