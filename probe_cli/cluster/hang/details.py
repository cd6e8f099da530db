"""Evidence on a blamed rank that its training thread's stack does not show: its loader workers, its other threads, the
store it waits for.

Runs in the CLI on its event loop, for a handful of ranks. Each worker costs its host 30 to 130 ms of py-spy; the target
is asked for nothing but the state of its job's store.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from probe_agent.errors import ProbeError
from probe_agent.wire import Backtrace, PeerList, QueryRequest, QueryResult, ThreadStack
from probe_cli.client import Client
from probe_cli.cluster.stacks import ask_stacks

from .doing import Activity, Doing, activity_of, is_job, job_frame, trains

__all__ = ["Details", "details", "held_rlock"]

#: More workers or threads than this are not named.
MAX_NAMED = 4
_WORKERS = "SELECT worker_pid FROM python.workers ORDER BY worker_pid"
#: What a worker that has nothing to do is not in.
_FETCH = "/utils/data/_utils/fetch.py"
#: The recorder's text of an RLock.
_HELD = re.compile(r"<RLock held by thread (.*) \((\d+)\)>")
#: Of the recorder's notes on the store, those that say that it gave no answer.
_FAILURE = re.compile(r"cannot (connect|send) to the job's store.*|the job's store (does not|did not|closed) .*")


@dataclass(frozen=True)
class Details:
    """What was found out about one rank."""

    sentences: tuple[str, ...] = ()
    #: It waits for a worker that works, or waits for storage.
    may_be_healthy: bool = False
    #: Why the job's store gave no answer; empty if it did, or nobody asked.
    store_failure: str = ""


def details(doing: Doing, timeout_s: float) -> Callable[[Client], Awaitable[Details]]:
    """Return the question for what a rank that does this waits for."""

    async def ask(client: Client) -> Details:
        if Activity.DATA in (doing.activity, doing.within):
            return await _workers(client, timeout_s)
        if doing.activity in (Activity.LOCK, Activity.JOIN, Activity.QUEUE):
            return await _threads(client)
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
    works = any(doing.activity.takes_long or doing.is_running for _, doing in busy)
    return Details(tuple(sentences), may_be_healthy=works)


async def _threads(client: Client) -> Details:
    """An RLock knows its owner, another lock does not: then the other threads that run code of the job may hold it."""
    try:
        stacks = await ask_stacks(client, all_threads=True, outside=True)
    except ProbeError:
        return Details()
    owner = await _owner(client)
    if owner is not None:
        lock, ident, name = owner
        holder = next((thread for thread in stacks.threads if thread.ident == ident), None)
        does = f", which {activity_of(holder)}" if holder is not None else ""
        return Details((f"{lock} is held by its thread {name}{does}",))
    others = [thread for thread in stacks.threads if _may_hold(thread)]
    named = [f"thread {thread.thread or '(unnamed)'} {activity_of(thread)}" for thread in others[:MAX_NAMED]]
    return Details((f"meanwhile its {_listed(named)}",) if named else ("no other thread of it runs code of the job",))


async def _owner(client: Client) -> tuple[str, int, str] | None:
    try:
        return held_rlock(await ask_stacks(client, with_locals=True))
    except ProbeError:
        return None  # its recorder is silent, or locals are not to be read


def held_rlock(stacks: Backtrace) -> tuple[str, int, str] | None:
    """Return the RLock that the job's innermost function names and another thread holds, with the number and the name
    of that thread; None if there is none, or several."""
    thread = trains(stacks)
    frame = next((frame for frame in thread.frames if is_job(frame)), None) if thread is not None else None
    if thread is None or frame is None:
        return None
    held = {name: found for name, text in (frame.locals or {}).items() if (found := _HELD.fullmatch(text))}
    of_others = [(name, int(found[2]), found[1]) for name, found in held.items() if int(found[2]) != thread.ident]
    return of_others[0] if len(of_others) == 1 else None


def _may_hold(thread: ThreadStack) -> bool:
    is_other = not (thread.is_main or thread.is_training or thread.is_probe)
    return is_other and job_frame(thread.frames) is not None


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
