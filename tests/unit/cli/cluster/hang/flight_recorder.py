"""Dumps as torch's Flight Recorder writes them on NCCL, of ranks of the simulator.

Sends and receives are made in batches of one, as a pipeline's `batch_isend_irecv` does: the single entry stays
`scheduled`, and the `coalesced` one behind it has the state. Groups have numbers as names, and each rank counts its own
groups for `pg_id` and `pg_status`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe_cli.cluster.hang.calls import Call, Group, Rank

__all__ = ["Dump", "dumps_of"]

Dump = dict[str, Any]  # JSON


def dumps_of(
    ranks: Mapping[int, Rank], *, only_active: bool = False, ring: int | None = None, is_batched: bool = True
) -> dict[int, Dump]:
    """Return the dump of each rank, of active calls alone or of the newest `ring`."""
    groups = sorted({group for rank in ranks.values() for group in rank.groups}, key=lambda group: group.ranks)
    names = {group: str(number) for number, group in enumerate(sorted(groups, key=lambda group: -len(group.ranks)))}
    return {rank: _dump(seen, names, only_active, ring, is_batched) for rank, seen in ranks.items()}


def _dump(seen: Rank, names: Mapping[Group, str], only_active: bool, ring: int | None, is_batched: bool) -> Dump:
    used = sorted({call.group for call in seen.calls}, key=lambda group: int(names[group]))
    entries: list[Dump] = []
    for call in seen.calls:
        base = {
            "pg_id": used.index(call.group) + 5,
            "process_group": [names[call.group], call.group.name],
            "collective_seq_id": call.seq if call.peer is None else 0,
            "p2p_seq_id": call.seq if call.peer is not None else 0,
            "is_p2p": call.peer is not None,
            "input_sizes": [list(size) for size in call.inputs],
            "output_sizes": [list(size) for size in call.outputs],
            "input_dtypes": list(call.dtypes),
            "output_dtypes": list(call.dtypes),
            "time_created_ns": 1_700_000_000_000_000_000 + call.order,
            "timeout_ms": 600_000,
            "retired": call.is_over,
        }
        state = "completed" if call.is_over else "started" if call.has_started else "scheduled"
        if call.peer is None:
            entries.append({**base, "profiling_name": f"nccl:{call.op}", "state": state})
            continue
        here, there = call.group.ranks.index(seen.rank), call.group.ranks.index(call.peer)
        name = f"nccl:send {here}->{there}" if call.op == "send" else f"nccl:recv {here}<-{there}"
        entries.append({**base, "profiling_name": name, "state": "scheduled" if is_batched else state})
        if is_batched:
            end = {"profiling_name": "nccl:coalesced", "state": state, "input_sizes": [], "output_sizes": []}
            entries.append({**base, **end, "input_dtypes": [], "output_dtypes": []})
    for number, entry in enumerate(entries):
        entry["record_id"] = number
    kept = [entry for entry in entries if not only_active or entry["state"] != "completed"][-ring if ring else 0 :]
    return {
        "version": "2.10",
        "pg_config": {
            names[group]: {"name": names[group], "desc": group.name, "ranks": str(list(group.ranks))} for group in used
        },
        "pg_status": {str(at + 5): _status(seen.calls, group) for at, group in enumerate(used)},
        **({"entries": kept} if kept else {}),
    }


def _status(calls: tuple[Call, ...], group: Group) -> Dump:
    mine = [call for call in calls if call.group == group]
    return {
        "last_enqueued_collective": mine[-1].seq,
        "last_started_collective": -1,
        "last_completed_collective": max((call.seq for call in mine if call.is_over), default=-1),
    }
