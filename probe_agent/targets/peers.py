"""What the ranks on this host know of their job's other ranks: out of their files, and asked only where ranks miss.

Runs in the host server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from time import monotonic
from typing import Any

from probe_agent.errors import ProbeError
from probe_agent.untrusted_files import opened

from .control import ask
from .target import Target

__all__ = ["peers_of"]

#: Where a recorder keeps what it knows (recorder/job/peers.py).
FILE = "peers.json"
_MAX_BYTES = 16 << 20
#: For all that have to be asked together: less than whoever asks the host server waits for it.
_ASK_S = 3.0

Entry = dict[str, Any]  # as the recorder wrote it, fields checked by whoever makes a wire.Peer of it


def peers_of(targets: Sequence[Target]) -> tuple[list[Entry], list[str]]:
    """An entry for each rank that is known, and why others may not be."""
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
        if len(entries) < int(identity["world_size"]) and target.is_alive and left_s > 0:
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
    try:
        with opened(os.path.join(target.folder, FILE)) as descriptor:
            said = json.loads(_all(descriptor))
    except (OSError, ValueError):
        return []  # nothing has been said yet
    entries = said.get("peers") if isinstance(said, dict) else None
    return [entry for entry in entries or () if _is_whole(entry)]


def _is_whole(entry: object) -> bool:
    kinds: dict[str, Any] = {"rank": int, "host": str, "pid": int, "attached_at": float, "note": str}
    kinds["address"] = (str, type(None))
    return isinstance(entry, dict) and all(isinstance(entry.get(name), kind) for name, kind in kinds.items())


def _all(descriptor: int) -> bytes:
    data = b""
    while len(data) < _MAX_BYTES and (part := os.read(descriptor, 1 << 20)):
        data += part
    return data
