"""Files that a command writes: there when the answer is whole, and not there otherwise."""

from __future__ import annotations

import contextlib
import gzip
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO, cast

from probe_agent.errors import BadRequest
from probe_cli.messages import remark

__all__ = ["stdout_to", "write_bytes", "written_file"]


@contextlib.contextmanager
def stdout_to(path: str | None) -> Iterator[None]:
    """Let what is printed go to the file `path`, if there is one."""
    if path is None:
        yield
        return
    with (
        _whole(path, even_empty=True) as part,
        open(part, "w", encoding="utf-8", newline="") as file,
        contextlib.redirect_stdout(file),
    ):
        yield


@contextlib.contextmanager
def written_file(path: str) -> Iterator[BinaryIO]:
    """The file `path`, open for bytes; compressed where its name ends with .gz. An empty one is not kept."""
    with _whole(path, even_empty=False) as part:
        with cast(BinaryIO, gzip.open(part, "wb") if path.endswith(".gz") else open(part, "wb")) as file:
            yield file
        written = os.path.getsize(part) > 0
    if written:
        remark(f"written: {path}")


@contextlib.contextmanager
def _whole(path: str, *, even_empty: bool) -> Iterator[str]:
    """A name to write to, which is renamed to `path` at the end, and removed after an error."""
    part = f"{path}.part"
    try:
        with open(part, "wb"):
            pass
    except OSError as refusal:
        raise BadRequest(f"cannot write {path}: {refusal.strerror}", "name a file in a writable folder") from refusal
    try:
        yield part
        if even_empty or os.path.getsize(part):
            os.replace(part, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def write_bytes(data: bytes) -> None:
    """Write to stdout as it is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
