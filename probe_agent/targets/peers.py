"""Other ranks of the jobs on this host: out of their recorders' files, which are asked only if ranks are missing.

Runs in the host server.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import monotonic
from typing import Any

from probe_agent.errors import ProbeError

from .control import ask
from .folder_files import read_json
from .target import Target

__all__ = ["peers_of"]

#: Where a recorder keeps what it knows (recorder/job/peers.py).
FILE = "peers.json"
#: For all targets that have to be asked: less than a client of the host server waits.
_ASK_S = 3.0

Entry = dict[str, Any]  # as the recorder wrote it, fields checked by whoever makes a wire.Peer of it


def peers_of(targets: Sequence[Target], *, again: bool = False) -> tuple[list[Entry], list[str]]:
    """Return an entry for each rank that is known, and why others may be missing. With `again` the store is asked even
    if all ranks are known."""
    found: dict[tuple[str, float], Entry] = {}
    notes: list[str] = []
    deadline = monotonic() + _ASK_S
    for target in targets:
        identity = target.identity
        is_known = (str(identity.get("host")), identity.get("attached_at")) in found
        if is_known or not target.has_recorder or int(identity["world_size"]) < 2:
            continue
        entries = _read(target)
        left_s = deadline - monotonic()
        if (again or len(entries) < int(identity["world_size"])) and target.is_alive and left_s > 0:
            notes += [note for note in _refresh(target, left_s) if note not in notes]
            entries = _read(target)
        for entry in entries:
            found[str(entry.get("host")), entry.get("attached_at", 0.0)] = entry
    return sorted(found.values(), key=lambda entry: (entry["rank"], entry["host"])), notes


def _refresh(target: Target, timeout_s: float) -> list[str]:
    try:
        return [f"{target}: {note}" for note in ask(target, "peers", timeout_s=timeout_s).get("notes", ())]
    except ProbeError as error:
        return [error.message]


def _read(target: Target) -> list[Entry]:
    entries = (read_json(os.path.join(target.folder, FILE)) or {}).get("peers")
    return [entry for entry in entries or () if _is_whole(entry)]


def _is_whole(entry: object) -> bool:
    kinds: dict[str, Any] = {"rank": int, "host": str, "pid": int, "attached_at": float, "note": str}
    kinds["address"] = (str, type(None))
    return isinstance(entry, dict) and all(isinstance(entry.get(name), kind) for name, kind in kinds.items())
