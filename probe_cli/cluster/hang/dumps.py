"""Reader of the files that torch's Flight Recorder writes: one a rank, pickled or JSON, of NCCL or gloo.

A file is untrusted: unpickling builds containers, numbers and texts, and refuses everything else.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from probe_agent.errors import BadRequest

from .calls import Call, Frame, Group, Rank, Shapes

__all__ = ["read_folder"]

_RANK = re.compile(r"(\d+)$")
_ENDINGS = {"", ".json", ".pkl", ".pickle", ".bin"}
_PEERS = re.compile(r"^(send|recv)\s+(\d+)(->|<-)(\d+)$")
_NEEDED = {"profiling_name", "state"}
#: torch writes a dump of 2,000 calls in about 1 MB, with stacks.
_MAX_BYTES = 256 * 2**20

_Entry = dict[str, Any]  # as torch wrote it


def read_folder(folder: Path) -> tuple[dict[int, Rank], list[str]]:
    """What each rank's dump in `folder` shows, and which files could not be read. The number at the end of a file's
    name is the rank. Raises BadRequest where there is no dump at all, or two for a rank."""
    if not folder.is_dir():
        raise BadRequest(f"no folder {folder}", "name the folder that the job's TORCH_FR_DUMP_TEMP_FILE points into")
    found: dict[int, tuple[Path, _Entry]] = {}
    unread = []
    for path in sorted(folder.rglob("*")):
        number = _RANK.search(path.stem) if path.suffix in _ENDINGS and path.is_file() else None
        if number is None:
            continue
        try:
            dump = _load(path)
        except _Unreadable as reason:
            unread.append(f"{path.name}: {reason}")
            continue
        rank = int(number[1])
        if rank in found:
            raise BadRequest(
                f"two dumps of rank {rank}: {found[rank][0]} and {path}", "keep the dumps of one run in a folder"
            )
        found[rank] = (path, dump)
    if not found:
        raise BadRequest(
            f"no Flight Recorder dump in {folder}" + (f" ({unread[0]})" if unread else ""),
            "name a folder of files like nccl_trace_rank_0, one a rank",
        )
    members = _members({rank: dump for rank, (_, dump) in found.items()})
    return {rank: _rank(rank, dump, members) for rank, (_, dump) in found.items()}, unread


class _Unreadable(Exception):
    """The file is no dump of Flight Recorder."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # Any: it never returns
        raise pickle.UnpicklingError(f"it names {module}.{name}, which a dump of Flight Recorder never does")


def _load(path: Path) -> _Entry:
    if path.stat().st_size > _MAX_BYTES:
        raise _Unreadable(f"larger than {_MAX_BYTES >> 20} MiB")
    data = path.read_bytes()
    try:
        dump = json.loads(data) if data[:1] == b"{" else _PlainUnpickler(io.BytesIO(data)).load()
    except Exception as refusal:  # noqa: BLE001  # a damaged pickle raises whatever it likes
        raise _Unreadable(f"neither a pickle nor JSON ({refusal})") from None
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
        raise _Unreadable("it has no entries")
    for entry in dump["entries"]:
        missing = _NEEDED - set(entry) if isinstance(entry, dict) else _NEEDED
        if missing:
            raise _Unreadable(f"an entry has no {sorted(missing)[0]}")
    return dump


def _members(dumps: Mapping[int, _Entry]) -> dict[tuple[int, str], tuple[int, ...]]:
    """The ranks of each rank's groups. gloo leaves them out: then the default group is everybody, and of any other
    those that have called in it are known to be members."""
    told = {
        (rank, str(config.get("name") or uid)): _numbers(config.get("ranks"))
        for rank, dump in dumps.items()
        for uid, config in (dump.get("pg_config") or {}).items()
        if isinstance(config, dict)
    }
    callers: dict[str, set[int]] = {}
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            callers.setdefault(_group_name(entry)[0], set()).add(rank)
    found = {}
    for rank, dump in dumps.items():
        for name, desc in {_group_name(entry) for entry in dump["entries"]}:
            everyone = desc == "default_pg" or len(callers) == 1
            inferred = tuple(range(max(dumps) + 1)) if everyone else tuple(sorted(callers[name]))
            found[rank, name] = told.get((rank, name)) or inferred
    return {**told, **found}


def _rank(rank: int, dump: _Entry, members: Mapping[tuple[int, str], tuple[int, ...]]) -> Rank:
    groups = {
        Group(name, ranks): "" for (owner, name), ranks in members.items() if owner == rank and name and rank in ranks
    }
    calls = []
    for order, entry in enumerate(sorted(dump["entries"], key=lambda entry: int(entry.get("record_id", 0)))):
        name, desc = _group_name(entry)
        group = Group(name, members[rank, name])
        groups[group] = "" if desc == "undefined" else desc
        calls.append(_call(entry, group, order))
    for uid, config in (dump.get("pg_config") or {}).items():
        name = str(config.get("name") or uid)
        group = Group(name, members.get((rank, name), ()))
        if not groups.get(group, "-"):
            groups[group] = "" if config.get("desc") in (None, "undefined") else str(config["desc"])
    return Rank(rank, tuple(calls), groups)


def _call(entry: _Entry, group: Group, order: int) -> Call:
    backend, _, op = str(entry["profiling_name"]).partition(":")
    ends = _PEERS.match(op)
    is_p2p = bool(entry.get("is_p2p", ends is not None))
    state = str(entry.get("state", ""))
    number = "p2p_seq_id" if is_p2p else "collective_seq_id"
    return Call(
        group,
        int(entry[number] if number in entry else entry.get("seq_id", 0)),
        (ends[1] if ends else op).lstrip("_"),
        order,
        has_started=state == "started" or bool(entry.get("time_discovered_started_ns")),
        # gloo says no more than that; on NCCL a call that is retired and not completed has run into its timeout.
        is_over=state == "completed" or (backend == "gloo" and bool(entry.get("retired"))),
        inputs=_shapes(entry.get("input_sizes")),
        outputs=_shapes(entry.get("output_sizes")),
        dtypes=tuple(map(str, entry.get("input_dtypes") or entry.get("output_dtypes") or ())),
        called=int(entry.get("time_created_ns") or 0) * 1e-9,
        timeout_s=int(entry["timeout_ms"]) * 1e-3 if entry.get("timeout_ms") else None,
        peer=_job_rank(group, int(ends[4])) if ends else None,
        frames=tuple(_frames(entry.get("frames") or ())),
    )


def _group_name(entry: _Entry) -> tuple[str, str]:
    """The group's name and description; dumps of torch 2.2 and older have its number only."""
    named = entry.get("process_group")
    return (str(named[0]), str(named[1])) if named else (str(entry.get("pg_id", 0)), "undefined")


def _job_rank(group: Group, rank_in_group: int) -> int:
    return group.ranks[rank_in_group] if rank_in_group < len(group.ranks) else rank_in_group


def _numbers(text: object) -> tuple[int, ...]:
    """`[0, 1, 2]`, as a list or as text; empty where it is not told."""
    if isinstance(text, list | tuple):
        return tuple(sorted(int(number) for number in text))
    return tuple(sorted(int(number) for number in re.findall(r"\d+", str(text or ""))))


def _shapes(sizes: object) -> Shapes:
    return tuple(tuple(map(int, size)) for size in sizes) if isinstance(sizes, list | tuple) else ()


def _frames(frames: Iterable[Mapping[str, object]]) -> Iterable[Frame]:
    for frame in frames:
        yield Frame(str(frame.get("name", "")), str(frame.get("filename", "")), int(str(frame.get("line", 0))))
