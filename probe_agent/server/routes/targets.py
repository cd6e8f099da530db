"""Targets and their jobs: who can be queried on this host, and where the other ranks are."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from time import time
from typing import Annotated

from fastapi import APIRouter, Query

from probe_agent.activate.selection import is_tool
from probe_agent.recorder.guest.redaction import redacted_command
from probe_agent.server.dependencies import ChosenTargets, Directory
from probe_agent.server.planned import planned_server_problem
from probe_agent.sql.tables.notes import is_uncounted
from probe_agent.targets import (
    Process,
    Target,
    children_of,
    launched_by,
    newest_step,
    peers_of,
    read_process,
    siblings_of,
    stall_text,
    startup_text,
    without_recorder,
)
from probe_agent.wire import Candidate, Launched, LaunchedList, Peer, PeerList, SiblingList, TargetInfo, TargetList

__all__ = ["read"]

read = APIRouter()


@read.get("/v1/targets")
def targets(
    directory: Directory,
    candidates: Annotated[bool, Query(description="also list Python processes without a recorder")] = False,
) -> TargetList:
    """Return every target of this host, including ended ones; read from their files, without a request to them."""
    found = tuple(_info(target) for target in directory.targets())
    others = directory.candidates() if candidates else []
    return TargetList(found, tuple(info for process in others if (info := _candidate(process)) is not None))


def _info(target: Target) -> TargetInfo:
    info, stepped_at = _of_ended(target) if target.has_ended else _read(target)
    return info if stepped_at is None else replace(info, step_age_s=max(0.0, time() - stepped_at))


@lru_cache(maxsize=512)
def _of_ended(target: Target) -> tuple[TargetInfo, float | None]:
    """What an ended target left: another object stands for it once its folder has changed."""
    return _read(target)


def _read(target: Target) -> tuple[TargetInfo, float | None]:
    """What its files tell, and when its newest step ended, in seconds since 1970."""
    said = target.identity
    newest = newest_step(target)
    process, end = target.process, target.end
    info = TargetInfo(
        pid=target.pid,
        rank=target.rank,
        local_rank=int(said.get("local_rank", 0)),
        world_size=int(said["world_size"]),
        host=str(said.get("host", "")),
        uid=int(said.get("uid", -1)),
        alive=target.is_alive,
        state=target.state,
        step=newest[0] if newest else None,
        step_age_s=None,
        age_s=process.age_s if process else None,
        command=tuple(redacted_command([str(word) for word in said.get("command", ())])),
        python=str(said.get("python", "")),
        torch=said.get("torch"),
        version=str(said.get("version", "")),
        how=str(said.get("how", "")),
        attached_at=float(said.get("attached_at", 0.0)),
        folder=target.folder,
        ended=end.how if end else "",
        ended_badly=end is not None and end.badly,
        ended_at=end.at if end else None,
        last_seen=end.last_seen if end else None,
        job=target.job,
        store=str(said.get("store", "")),
        roles=target.roles,
        server_problem=planned_server_problem(target.folder) if target.is_alive else "",
        uncounted=target.is_alive and is_uncounted(target),
        asleep=target.asleep,
        stall=startup_text(target) or stall_text(target),
    )
    return info, newest[1] if newest else None


def _candidate(process: Process) -> Candidate | None:
    try:
        if is_tool(process.command):
            return None  # ours, or pip: no training
        command = tuple(redacted_command(process.command))
        return Candidate(process.pid, process.uid, process.state, process.age_s, command)
    except OSError:
        return None  # it has ended meanwhile


@read.get("/v1/siblings")
def siblings(pid: Annotated[int, Query(description="process id of a rank of the server's user")]) -> SiblingList:
    """The ranks that meet at the same store, as RANK, MASTER_ADDR and MASTER_PORT in their environment say, or that
    have been spawned by the same parent; nothing is asked of any of them."""
    process = read_process(pid)
    found = siblings_of(pid) if process is not None and os.geteuid() in (0, process.uid) else None
    if found is None:
        return SiblingList("", (), "")
    started = []
    for rank, one in found.ranks:
        try:
            started.append(Launched(one.pid, rank, tuple(redacted_command(one.command))))
        except OSError:
            continue  # it has ended meanwhile
    ordered = sorted(started, key=lambda one: (one.rank is None, one.rank or 0, one.pid))
    return SiblingList(found.by, tuple(ordered), found.launcher)


@read.get("/v1/launched")
def launched(directory: Directory, pid: Annotated[int, Query(description="the launcher's process id")]) -> LaunchedList:
    """What the process has started, when it is a launcher of the server's user (torchrun, accelerate, deepspeed,
    mpirun, a script that waits in `mp.spawn` and has recorded no step), or else those of its children that have torch
    and load no data; nothing is asked of any of them."""
    process = read_process(pid)
    if process is None or os.geteuid() not in (0, process.uid):
        return LaunchedList("", ())
    known = {target.pid: target for target in directory.seen() if target.is_alive}
    trains = pid in known and newest_step(known[pid]) is not None  # and waits for a helper that it has started
    launcher, processes = (None if trains else launched_by(pid)) or ("", children_of(pid))
    started = []
    for one in processes:
        try:
            rank = known.get(one.pid, without_recorder(one)).rank
            started.append(Launched(one.pid, rank, tuple(redacted_command(one.command))))
        except OSError:
            continue  # it has ended meanwhile
    return LaunchedList(launcher, tuple(sorted(started, key=lambda one: (one.rank is None, one.rank or 0, one.pid))))


@read.get("/v1/peers")
def peers(
    targets: ChosenTargets,
    again: Annotated[bool, Query(description="ask the store now, even if it has told of all ranks")] = False,
) -> PeerList:
    """What each recorder has said in its job's own store (torch's TCPStore) about the host server that answers for it.
    A rank without a recorder has said nothing."""
    found, notes = peers_of(targets, again=again)
    return PeerList(
        tuple(
            Peer(entry["rank"], entry["host"], entry["pid"], entry["attached_at"], entry["address"], entry["note"])
            for entry in found
        ),
        tuple(notes),
    )
