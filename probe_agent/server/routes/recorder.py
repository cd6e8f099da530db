"""The recorder in a target: its settings, its removal, and the rings that ended targets have left."""

from __future__ import annotations

import os
from time import time
from typing import Any

from fastapi import APIRouter, Request

from probe_agent.errors import BadRequest
from probe_agent.recorder.guest.redaction import redacted_command
from probe_agent.recorder.ring.folder import is_held, remove
from probe_agent.server.access.audit import audited
from probe_agent.server.dependencies import ChosenTarget, Directory, Engine, Pid
from probe_agent.targets import Target, ask, newest_step, settings
from probe_agent.units import mib
from probe_agent.wire import (
    Cleaned,
    CleanRequest,
    Detached,
    DetachRequest,
    ExtendTimeoutRequest,
    GroupTimeout,
    GroupTimeouts,
    Removed,
    SettingChanges,
    SettingList,
)

__all__ = ["control", "read"]

#: A week.
MAX_TIMEOUT_S = 7 * 86_400.0

read = APIRouter()
control = APIRouter()


@read.get("/v1/config")
def show(target: ChosenTarget) -> SettingList:
    """Return every setting with its value, default, unit and meaning."""
    return settings(target)


@control.patch("/v1/config")
def change(request: Request, target: ChosenTarget, changes: SettingChanges) -> SettingList:
    """Change settings: all of them, or none if one is invalid. The answer lists all settings."""
    asked = " ".join(f"{name}={value}" for name, value in changes.changes.items())
    with audited(request, target, "config", asked):
        return settings(target, changes.changes)


@control.post("/v1/extend-timeout")
def extend_timeout(request: Request, target: ChosenTarget, wanted: ExtendTimeoutRequest) -> GroupTimeouts:
    """Give the process groups of a rank a longer timeout, for the calls that it makes from now on. Calls that already
    wait keep theirs: torch has no way to change it."""
    if not 0 < wanted.seconds <= MAX_TIMEOUT_S:
        raise BadRequest(f"invalid timeout: {wanted.seconds:g} s", f"use 1 to {MAX_TIMEOUT_S:.0f} s")
    with audited(request, target, "extend-timeout", f"{wanted.seconds:g} s"):
        answer = ask(target, "extend_timeout", seconds=wanted.seconds)
    groups: Any = answer["groups"]
    notes: Any = answer["notes"]
    return GroupTimeouts(tuple(GroupTimeout(*group) for group in groups), tuple(notes))


#: What runs is cancelled first, for 2 s at most. Less than the command line waits, so that what we saw is said.
_DETACH_S = 8.0


@control.post("/v1/detach")
def detach(
    request: Request, target: ChosenTarget, directory: Directory, engine: Engine, wanted: DetachRequest | None = None
) -> Detached:
    """Take the recorder out again: hooks, thread, signal handler and files. What it recorded is gone afterwards, unless
    it is to be kept: then it is that of a target that has ended."""
    with audited(request, target, "detach"):
        answer = ask(target, "detach", timeout_s=_DETACH_S, keep=wanted is not None and wanted.keep)
    engine.rings.forget_removed()
    if not any(other.is_alive for other in directory.targets()):
        request.app.state.leave()
    kept = os.path.basename(str(answer.get("kept") or ""))
    return Detached(target.pid, os.path.join(os.path.dirname(target.folder), kept) if kept else None)


@control.post("/v1/clean")
def clean(request: Request, wanted: CleanRequest, directory: Directory, engine: Engine, pid: Pid = None) -> Cleaned:
    """Remove the rings of ended targets: all of them, or those of `pid`. A living target is refused."""
    targets = directory.targets() if pid is None else directory.choose(pid)
    if pid is not None and any(target.is_alive for target in targets):
        raise BadRequest(f"pid {pid} is still running and its rings are in use", f"detach first: probe {pid} detach")
    dead = [target for target in targets if not target.is_alive]
    removed = []
    for target in dead:
        if time() - _newest(target) < wanted.older_than_s:
            continue
        try:
            if is_held(target.folder):
                continue
            size = mib(sum(entry.stat().st_blocks for entry in os.scandir(target.folder)) * 512)
        except FileNotFoundError:
            continue  # removed by another request
        with audited(request, target, "clean"):
            remove(target.folder)
        said = target.identity.get("command", ())
        removed.append(Removed(target.pid, tuple(redacted_command([str(word) for word in said])), size))
    engine.rings.forget_removed()
    return Cleaned(tuple(removed), len(dead) - len(removed))


def _newest(target: Target) -> float:
    """When it last recorded something, as far as we know."""
    newest = newest_step(target)
    return max(float(target.identity.get("attached_at", 0.0)), newest[1] if newest else 0.0)
