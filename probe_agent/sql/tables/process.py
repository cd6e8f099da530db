"""`process.env`: versions, settings and code that each target runs with."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from probe_agent.recorder.ring.table import Column
from probe_agent.targets import Target, read_source

from .live_table import STEP, RecorderTable

__all__ = ["ProcessEnv"]


class ProcessEnv(RecorderTable):
    name = "process.env"
    doc = (
        "Versions, torch's settings, variables that matter to a job, Probe's settings, and the code of script and"
        " models, read when the query runs."
    )
    operation = "environment"
    columns = (
        STEP,
        Column("kind", "text", "", "version, setting, variable, probe (a setting of the recorder) or code"),
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
