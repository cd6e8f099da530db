"""`probe.audit`: actions on the targets of this host, with who asked for them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from probe_agent.audit import Entry, entries, notes
from probe_agent.recorder.ring.table import Column
from probe_agent.targets import Target

from .live_table import HostTable, Part

__all__ = ["Audit"]


class Audit(HostTable):
    name = "probe.audit"
    in_worker = True
    doc = (
        "Every attach, eval, change of a setting, profile, watch, detach and clean by this user's host server or"
        " command line on this host, about the newest ten thousand: those on the queried targets, and on targets that"
        " are gone. They are read from the audit file; a note says if there are older ones."
    )
    columns = (
        Column("ts", "time", "UTC", "when it began"),
        Column("peer", "text", "", "the client: address and port, or user and process id on the unix socket"),
        Column("role", "text", "", "role of the client: control; read is refused earlier"),
        Column("action", "text", "", "inject, eval, config, profile, watch, detach or clean"),
        Column("text", "text", "", "the full request: code, settings, expressions, options"),
        Column("result", "text", "", "the result; NULL while it runs, or if the server ended first"),
    )

    @classmethod
    def take_host(cls, targets: Sequence[Target]) -> tuple[Sequence[Part], Sequence[str]]:
        asked = {target.pid for target in targets}
        found: dict[tuple[tuple[str, object], ...], list[Entry]] = {}
        for entry in entries():
            about = entry.action.target
            if about.get("pid") in asked or not os.path.isdir(str(about.get("folder"))):
                found.setdefault(tuple(_coordinates(about).items()), []).append(entry)
        return [Part(dict(key), cls.columns, [_columns(of)]) for key, of in found.items()], notes()


def _coordinates(about: Mapping[str, object]) -> dict[str, object]:
    return {name: about.get(name) for name in ("host", "pid", "rank", "world_size", "job")}


def _columns(found: Sequence[Entry]) -> dict[str, np.ndarray]:
    columns = {"ts": np.array([int(entry.ts * 1e6) for entry in found], "datetime64[us]")}
    for name in ("peer", "role", "action", "text"):
        columns[name] = _texts([getattr(entry.action, name) for entry in found])
    return {**columns, "result": _texts([entry.result for entry in found])}


def _texts(values: Sequence[str | None]) -> np.ndarray:
    column = np.empty(len(values), object)
    column[:] = values
    return column
