"""Reasons why tables have no rows, or no new ones: `awaited.json` beside the rings.

Each source says what it waits for (`Source.awaited`). The recorder's thread writes the file when a reason has changed,
at most once a second (about 20 µs of CPU time), so that it can be read when the target cannot answer or has ended. It
costs the training thread nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from time import monotonic, time

from .ring.folder import AWAITED
from .source import Awaited, Recorder, Source
from .torch import loaded

__all__ = ["AwaitedFile", "reasons", "why_no_steps"]

INTERVAL_S = 1.0
#: Time given to the first step before it counts as missing.
PATIENCE_S = 5.0
#: Backwards without a step: what began as one step is none.
MANY = 8
BY_HAND = "call probe_agent.step() at the end of each step"
MAX_NAMED = 4


class AwaitedFile:
    """The file in the target's folder."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, AWAITED)
        self._since = time()
        self._written: Mapping[str, Awaited] | None = None
        self._due = 0.0

    def write(self, found: Mapping[str, Awaited]) -> None:
        """Write the reasons by table if they have changed. Raises OSError."""
        if found == self._written or monotonic() < self._due:
            return
        self._due = monotonic() + INTERVAL_S
        content = {"since": self._since, "tables": {name: list(one) for name, one in found.items()}}
        with open(self._path + ".new", "w") as file:
            file.write(json.dumps(content))
        os.chmod(self._path + ".new", 0o600)
        os.rename(self._path + ".new", self._path)
        self._written = dict(found)


def reasons(
    running: Iterable[Source], to_start: Iterable[type[Source]], taken_off: Iterable[type[Source]]
) -> dict[str, Awaited]:
    """Return what each table without rows waits for, by table name."""
    found: dict[str, Awaited] = {}
    for kind in to_start:
        missing = next((name for name in kind.needs if loaded(name) is None), None)
        if missing is not None:
            found.update((table.name, _not_imported(missing)) for table in kind.tables)
    for source in running:
        found.update(source.awaited())
    for kind in taken_off:
        found.update((table.name, _TAKEN_OFF) for table in kind.tables)
    return found


_TAKEN_OFF = Awaited("its source failed three times and was removed", "see why: SELECT * FROM probe.errors")


def _not_imported(name: str) -> Awaited:
    if name.partition(".")[0] == "torch" and loaded("torch") is None:
        return Awaited("torch is not imported in this process", "find one that has imported it: probe list")
    return Awaited(f"{name} is not imported in this process", "wait until the job imports and uses it")


def why_no_steps(recorder: Recorder) -> Awaited:
    """Return why python.steps has no row: what was seen of the job so far, and what is missing."""
    seen, step = recorder.seen, recorder.step
    starting = recorder.before_first_step()
    if starting is not None:
        return starting
    if step.thread is not None:
        told = "the step that was running when the recorder started gets no row, and the next one has not ended yet"
        return Awaited(told, "query it again later; see where the job is: probe … backtrace")
    num_backwards = step.micro_batches
    if monotonic() - seen.since < PATIENCE_S and num_backwards < MANY:
        return Awaited("the first step has not ended yet", "query it again in a few seconds")
    if num_backwards and not seen.optimizer_classes:
        told = f"backward was called {_times(num_backwards)}, but no optimizer step and no parameter update was seen"
        return Awaited(told, BY_HAND)
    if seen.optimizer_classes:
        told = f"{', '.join(seen.optimizer_classes[:MAX_NAMED])} has not stepped yet"
        if num_backwards:
            told += f", but backward was called {_times(num_backwards)}"
        return Awaited(told, f"wait for its first step (see where the job is: probe … backtrace), or {BY_HAND}")
    if seen.running:
        named = sorted(seen.running.items(), key=lambda item: -item[1])[:MAX_NAMED]
        told = ", ".join(f"{name} (seen {_times(num)})" for name, num in named)
        return Awaited(f"no optimizer has stepped, and none of the modules seen is tracked: {told}", BY_HAND)
    return Awaited("no optimizer step, no backward and no module call was seen", BY_HAND)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
