"""Live tables of the process: what it runs with (`process.env`), how it ended (`process.end`)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from probe_agent.recorder.ring.table import Column
from probe_agent.targets import Target, exceptions_of, newest_step, read_source

from .live_table import STEP, LiveTable, RecorderTable, Row

__all__ = ["ProcessEnd", "ProcessEnv"]


class ProcessEnd(LiveTable):
    name = "process.end"
    doc = (
        "How a target ended, as far as it, other ranks, the host server and the kernel have left a word. A running one"
        " has no row."
    )
    columns = (
        STEP,
        Column("ts", "time", "UTC", "when it ended; NULL if nobody saw it"),
        Column("last_seen", "time", "UTC", "last sign of life of its recorder, or when its files were changed last"),
        Column("how", "text", "", "in words"),
        Column("exit_code", "int", "", "its exit code; NULL if it was killed, or unknown"),
        Column("signal", "text", "", "the signal that killed it; NULL if none did, or unknown"),
        Column("exception", "text", "", "its last uncaught exception, the main thread's first; NULL if there was none"),
        Column("known_from", "text", "", "where exit code or signal are known from; NULL if they are not"),
    )

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[Row], Sequence[str]]:
        end = target.end
        if target.is_alive or end is None:
            return [], [f"{target} has not ended"]
        newest = newest_step(target)
        uncaught = exceptions_of(target.folder)[:1]
        exception = f"{uncaught[0]['type']}: {uncaught[0]['message']}" if uncaught else None
        code = end.code if end.code is not None and end.code >= 0 else None
        row = (
            newest[0] if newest else None,
            None if end.at is None else int(end.at * 1e6),
            int(end.last_seen * 1e6),
            end.how,
            code,
            end.signal,
            exception,
            ", ".join(end.known_from) or None,
        )
        return [row], []


class ProcessEnv(RecorderTable):
    name = "process.env"
    doc = (
        "Versions, torch's settings, variables that matter to a job, Probe's settings, and the code of the script, of"
        " the modules beside it and of models, read when the query runs."
    )
    operation = "environment"
    columns = (
        STEP,
        Column(
            "kind", "text", "", "version, hardware, setting, seed, variable, probe (a setting of the recorder) or code"
        ),
        Column("name", "text", "", "of code, the module"),
        Column(
            "value",
            "text",
            "",
            "of code, the beginning of its file's SHA-256 as the file is now; NULL if there is none, or the file"
            " cannot be read",
        ),
        Column("file", "text", "", "of code, the file as the target sees it"),
    )

    @classmethod
    def take(cls, target: Target, within_s: float) -> tuple[Sequence[tuple[object, ...]], Sequence[str]]:
        rows, notes = super().take(target, within_s)
        return [_with_hash(target, *row) for row in rows], notes


def _with_hash(
    target: Target, step: object, kind: object, name: object, value: object, file: object
) -> tuple[object, ...]:
    if kind == "code" and isinstance(file, str):
        data = read_source(target, file)
        value = None if data is None else hashlib.sha256(data).hexdigest()[:16]
    return step, kind, name, value, file
