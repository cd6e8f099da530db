"""Reader of the files that torch's Flight Recorder writes: one a rank, pickled or JSON, of NCCL or gloo.

A file is untrusted: unpickling builds containers, numbers and texts, and refuses everything else.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probe_agent.errors import BadRequest

from .calls import Rank
from .entries import Entry, as_ranks

__all__ = ["read_folder"]

_RANK = re.compile(r"(\d+)$")
_ENDINGS = {"", ".json", ".pkl", ".pickle", ".bin", ".dump"}
_NEEDED = {"profiling_name", "state"}
#: What a dump may consist of; one without calls has no entries in JSON.
_SIGNS = {"entries", "pg_config", "pg_status", "version"}
#: torch writes a dump of 2,000 calls in about 1 MB, with stacks.
_MAX_BYTES = 256 * 2**20
_GZIP = b"\x1f\x8b"


def read_folder(folder: Path) -> tuple[dict[int, Rank], list[str]]:
    """What each rank's dump in `folder` shows, and which files could not be read. The number at the end of a file's
    name is the rank. Raises BadRequest where there is no dump at all, or two for a rank."""
    if not folder.is_dir():
        raise BadRequest(f"no folder {folder}", "name the folder that the job's TORCH_FR_DUMP_TEMP_FILE points into")
    found: dict[int, tuple[Path, Entry]] = {}
    unread = []
    for path in sorted(folder.rglob("*")):
        rank = _rank_of(path)
        if rank is None:
            continue
        try:
            dump = _load(path)
        except _Unreadable as reason:
            unread.append(f"{path.name}: {reason}")
            continue
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
    return as_ranks({rank: dump for rank, (_, dump) in found.items()}), unread


class _Unreadable(Exception):
    """The file is no dump of Flight Recorder."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # Any: it never returns
        raise pickle.UnpicklingError(f"it names {module}.{name}, which a dump of Flight Recorder never does")


def _rank_of(path: Path) -> int | None:
    """`nccl_trace_rank_3`, `rank_3.json` and `rank_3.json.gz` are of rank 3; another file is of none."""
    bare = path.with_suffix("") if path.suffix == ".gz" else path
    number = _RANK.search(bare.stem) if bare.suffix in _ENDINGS and path.is_file() else None
    return int(number[1]) if number is not None else None


def _load(path: Path) -> Entry:
    if path.stat().st_size > _MAX_BYTES:
        raise _Unreadable(f"larger than {_MAX_BYTES >> 20} MiB")
    try:
        data = _plain(path.read_bytes())
        dump = json.loads(data) if data.lstrip()[:1] in (b"{", b"[") else _PlainUnpickler(io.BytesIO(data)).load()
    except _Unreadable:
        raise
    except Exception as refusal:  # noqa: BLE001  # a damaged pickle raises whatever it likes
        raise _Unreadable(f"neither a pickle nor JSON ({refusal})") from None
    if isinstance(dump, list):  # torch 2.2: the calls alone
        dump = {"entries": dump}
    if not isinstance(dump, dict) or not _SIGNS & set(dump):
        raise _Unreadable("it has no entries")
    dump.setdefault("entries", [])
    _check(dump)
    return dump


def _check(dump: Mapping[str, Any]) -> None:
    if not isinstance(dump["entries"], list):
        raise _Unreadable("its entries are no list")
    for entry in dump["entries"]:
        missing = _NEEDED - set(entry) if isinstance(entry, dict) else _NEEDED
        if missing:
            raise _Unreadable(f"an entry has no {sorted(missing)[0]}")


def _plain(data: bytes) -> bytes:
    """Return the bytes, unpacked if they are gzip's, and no more of them than a dump may have."""
    if data[:2] != _GZIP:
        return data
    try:
        with gzip.open(io.BytesIO(data)) as packed:
            plain = packed.read(_MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as damage:
        raise _Unreadable(f"damaged gzip file ({damage})") from None
    if len(plain) > _MAX_BYTES:
        raise _Unreadable(f"larger than {_MAX_BYTES >> 20} MiB")
    return plain
