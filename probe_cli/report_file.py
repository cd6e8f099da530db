"""File of `probe … report`: its layout, and how one that somebody has sent is read.

A report is a zip, and whoever sends it may have changed it. So nothing is extracted or run, names are checked before
they are used, and every member is read with a limit, whatever size it claims. Runs in the CLI.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import IO, Any

from probe_agent.errors import BadRequest

__all__ = ["HEAD", "README", "ReportFile", "ReportTarget", "finding_file", "is_report", "stacks_file", "table_file"]

README, HEAD = "README.txt", "report.json"
#: What says that a zip is a report.
FORMAT, VERSION = "probe-report", 1
MAX_MEMBERS = 50_000
MAX_JSON_BYTES = 64 << 20
MAX_TABLE_BYTES = 256 << 20
_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")
_FOLDER = re.compile(r"ranks/[\w-]+")
_PIECE_BYTES = 1 << 20


def stacks_file(folder: str) -> str:
    return f"{folder}/stacks.json"


def table_file(folder: str, table: str) -> str:
    return f"{folder}/tables/{table}.parquet"


def finding_file(command: str, form: str) -> str:
    """`form` is txt or json."""
    return f"findings/{command}.{form}"


def is_report(path: str) -> bool:
    """Return whether `path` is a zip, by its beginning."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


@dataclass(frozen=True)
class ReportTarget:
    """One target in a report: the folder of what it has said, and what was known of it, as decoded JSON."""

    folder: str
    info: dict[str, Any]

    @property
    def pid(self) -> object:
        return self.info.get("pid")

    @property
    def rank(self) -> object:
        return self.info.get("rank")


@dataclass(frozen=True)
class ReportFile:
    """A report at `path`. Every method raises BadRequest if the file is damaged, or none of ours."""

    path: str
    _cache: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def head(self) -> dict[str, Any]:
        """What is in it."""
        head = self.json(HEAD)
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise self._bad("it was not made by `probe … report`")
        if head.get("version") != VERSION:
            has = str(head.get("version"))[:20]
            raise self._bad(f"it has version {has} of the format, and this Probe reads version {VERSION}")
        return head

    @property
    def targets(self) -> list[ReportTarget]:
        said = self.head.get("targets")
        found = []
        for one in said if isinstance(said, list) else ():
            folder, info = (one.get("folder"), one.get("info")) if isinstance(one, dict) else (None, None)
            if not isinstance(folder, str) or not _FOLDER.fullmatch(folder) or not isinstance(info, dict):
                raise self._bad("its list of targets is damaged")
            found.append(ReportTarget(folder, info))
        return found

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """The tables by name, as `wire.TableInfo`."""
        said = self.head.get("tables")
        tables = said if isinstance(said, list) else []
        found = {str(table.get("name")): table for table in tables if isinstance(table, dict)}
        if not all(map(_NAME.fullmatch, found)):
            raise self._bad("its list of tables is damaged")
        return found

    @property
    def findings(self) -> dict[str, int]:
        """Exit codes of the commands whose output is in it."""
        said = self.head.get("findings")
        findings = said if isinstance(said, dict) else {}
        return {name: code for name, code in findings.items() if _NAME.fullmatch(name) and type(code) is int}

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out when it was made."""
        said = self.head.get("left_out")
        return tuple(map(str, said)) if isinstance(said, list) else ()

    def json(self, name: str) -> Any:  # whatever JSON holds
        try:
            return json.loads(self.read(name, MAX_JSON_BYTES))
        except (ValueError, RecursionError) as error:
            raise self._bad(f"{name} cannot be read: {error}") from None

    def has(self, name: str) -> bool:
        with self._opened() as archive:
            return name in archive.NameToInfo

    def read(self, name: str, max_bytes: int = MAX_JSON_BYTES) -> bytes:
        """Return one member, of at most `max_bytes`."""
        if name not in self._cache:
            self._cache[name] = b"".join(self.pieces(name, max_bytes))
        return self._cache[name]

    def pieces(self, name: str, max_bytes: int) -> Iterator[bytes]:
        """The same in pieces; of a zip bomb no more than the limit is unpacked."""
        with self._opened() as archive:
            try:
                with archive.open(name) as member:
                    yield from self._limited(name, member, max_bytes)
            except KeyError:
                raise self._bad(f"there is no {name} in it") from None
            except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
                raise self._bad(f"{name} cannot be unpacked: {error}") from None

    def _limited(self, name: str, member: IO[bytes], max_bytes: int) -> Iterator[bytes]:
        left = max_bytes
        while piece := member.read(min(_PIECE_BYTES, left + 1)):
            left -= len(piece)
            if left < 0:
                raise self._bad(f"{name} is larger than {max_bytes >> 20} MiB")
            yield piece

    @contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        try:
            archive = zipfile.ZipFile(self.path)
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise self._bad(str(error)) from None
        with archive:
            if len(archive.NameToInfo) > MAX_MEMBERS:
                raise self._bad(f"it has more than {MAX_MEMBERS:,} files in it")
            yield archive

    def _bad(self, why: str) -> BadRequest:
        return BadRequest(f"{self.path} cannot be read as a report: {why}", "make one with: probe … report -o FILE.zip")
