"""Snapshot of a stalled target in its folder, `stall.json`: everything that nobody was there to ask for.

Made of what the recorder answers on request (stacks, process groups, Flight Recorder), of /proc, and of the newest rows
of its rings. A section is a list of columns and of rows; the most telling sections come first, and each takes at most
half of the bytes that are left, so that none crowds out the others. The file is replaced by a rename: a reader finds a
complete one or none.

Runs on the recorder's thread, once a stall: 2 to 70 ms (benchmarks.samplers), most of it Flight Recorder, which holds
the GIL.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..guest.end_mark import exit_code_of
from ..ring.folder import STALL
from ..ring.table import MIB
from ..source import Recorder
from ..torch import loaded

__all__ = ["Section", "of_flight_recorder", "oldest_collective", "sections", "threads", "write"]

VERSION = 1
#: Frames of one thread: the innermost ones, and the outermost ones where there are more.
MAX_INNER, MAX_OUTER = 100, 28
MAX_TASKS, MAX_CHILDREN = 256, 256
#: Newest rows of these tables.
ROWS = {"python.steps": 20, "process.samples": 10, "python.collectives": 40, "torch.memory": 8}
_PAGES = os.sysconf("SC_PAGE_SIZE") / MIB

Thread = Mapping[str, Any]  # an entry of operations/stacks.py
Part = tuple[Sequence[str], Sequence[Sequence[object]]]  # columns and rows


class Section:
    """Rows of one kind."""

    def __init__(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.name = name
        self.columns = columns
        self.rows = rows

    def encode(self, num_bytes: int) -> bytes:
        """Return it as JSON of at most `num_bytes`, or as little as an empty one takes; the last rows are left out."""
        head = b'"%s": {"columns": %s, "rows": [' % (self.name.encode(), _json(self.columns))
        left = num_bytes - len(head) - len(b'], "left_out": 1000000000}')
        encoded: list[bytes] = []
        for row in self.rows:
            text = _json(row)
            left -= len(text) + 2
            if left < 0:
                break
            encoded.append(text)
        return head + b", ".join(encoded) + b'], "left_out": %d}' % (len(self.rows) - len(encoded))


def write(folder: str, stall: Mapping[str, object], found: Sequence[Section], max_bytes: int) -> int:
    """Write the snapshot, at most `max_bytes` long, and return its length. Raises OSError."""
    parts = [b'"version": %d, "stall": %s' % (VERSION, _json(stall))]
    left = max_bytes - len(parts[0]) - len(b', "sections": {}}') - 2
    for section in found:
        parts.append(section.encode(left // 2))
        left -= len(parts[-1]) + 2
    content = b"{" + parts[0] + b', "sections": {' + b", ".join(parts[1:]) + b"}}"
    path = os.path.join(folder, STALL)
    try:
        descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            at = 0
            while at < len(content):
                at += os.write(descriptor, content[at : at + (1 << 20)])
        finally:
            os.close(descriptor)
        os.rename(path + ".new", path)
    except OSError:
        with suppress(OSError):
            os.unlink(path + ".new")
        raise
    return len(content)


def threads(recorder: Recorder) -> list[Thread]:
    """Return the stacks of all threads, the training thread first."""
    found: list[Thread] = recorder.ask("stacks", {"all": True})["threads"]
    return sorted(found, key=lambda thread: (not thread["is_training"], not thread["is_main"], thread["is_probe"]))


def sections(recorder: Recorder, stacks: Sequence[Thread]) -> Iterator[Section]:
    """Yield all sections for which nothing of torch.distributed is asked."""
    yield _threads(stacks)
    yield _frames(stacks)
    for name, make in _SECTIONS.items():
        try:
            columns, rows = make(recorder)
        except Exception as error:  # one that cannot be had must not cost the others
            recorder.fail("stalls", error)
            columns, rows = ("error",), [[f"{type(error).__name__}: {error}"]]
        yield Section(name, columns, rows)


def oldest_collective(flight: Section) -> tuple[str, float]:
    """Return the oldest collective under way as text, and its age in seconds; nothing if there is none."""
    at = {name: place for place, name in enumerate(flight.columns)}
    calls = [row for row in flight.rows if row[at["state"]] in ("scheduled", "started")]
    if not calls:
        return "", 0.0
    oldest = max(calls, key=lambda row: float(str(row[at["age"]])))
    age = float(str(oldest[at["age"]]))
    return f"{oldest[at['op']]} {oldest[at['seq']]} of group {oldest[at['group']]}, called {age:.0f} s before", age


def _threads(stacks: Sequence[Thread]) -> Section:
    columns = ("thread", "tid", "is_main", "is_training", "is_probe", "num_frames")
    rows = [[*(thread[name] for name in columns[:-1]), len(thread["frames"])] for thread in stacks]
    return Section("threads", columns, rows)


def _frames(stacks: Sequence[Thread]) -> Section:
    rows = []
    for number, thread in enumerate(stacks):
        frames = list(enumerate(thread["frames"]))
        if len(frames) > MAX_INNER + MAX_OUTER:
            frames = frames[:MAX_INNER] + frames[-MAX_OUTER:]
        rows += [
            [number, depth, frame["func"], frame["file"], frame["lineno"], frame["source"]] for depth, frame in frames
        ]
    return Section("frames", ("number", "depth", "func", "file", "lineno", "source"), rows)


def of_flight_recorder(recorder: Recorder) -> list[Section]:
    """Return the entries of torch's Flight Recorder, those under way first, and the process groups."""
    columns, rows = _answer("flight_recorder", recorder)
    at = list(columns).index("state")
    entries = Section("flight_recorder", columns, sorted(rows, key=lambda row: row[at] in ("completed", "failed")))
    return [entries, Section("process_groups", *_answer("process_groups", recorder))]


def _answer(operation: str, recorder: Recorder) -> Part:
    answer = recorder.ask(operation, {})
    return answer["columns"], answer["rows"]


def _children(recorder: Recorder) -> Part:
    """Return the child processes, DataLoader workers among them, and workers that are gone."""
    pids = []
    for task in os.listdir("/proc/self/task"):
        pids += [int(pid) for pid in _read(f"/proc/self/task/{task}/children").split()]
    workers = getattr(recorder.batches(), "_workers", None) or ()
    of_loader = [pid for pid in (getattr(worker, "pid", None) for worker in workers) if pid]
    rows: list[Sequence[object]] = []
    for pid in list(dict.fromkeys(of_loader + pids))[:MAX_CHILDREN]:
        fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        name = _read(f"/proc/{pid}/comm").strip()
        state = fields[0] if fields else "gone"
        resident = int(fields[21]) * _PAGES if fields else None
        waits_in = _read(f"/proc/{pid}/wchan").strip("0\n") or None
        rows.append([pid, pid in of_loader, name, state, waits_in, resident, exit_code_of(pid)])
    return ("pid", "is_loader_worker", "name", "state", "waits_in", "rss", "exit_code"), rows


def _tasks(recorder: Recorder) -> Part:
    """Return what the kernel tells of each thread, native ones included."""
    rows: list[Sequence[object]] = []
    for task in sorted(os.listdir("/proc/self/task"), key=int)[:MAX_TASKS]:
        folder = f"/proc/self/task/{task}"
        fields = _read(folder + "/stat").rpartition(")")[2].split()
        if fields:
            cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            waits_in = _read(folder + "/wchan").strip("0\n") or None
            rows.append([int(task), _read(folder + "/comm").strip(), fields[0], waits_in, cpu])
    return ("tid", "name", "state", "waits_in", "cpu"), rows


def _memory(recorder: Recorder) -> Part:
    """Return amounts of memory in MiB."""
    rows: list[Sequence[object]] = []
    for name, pages in zip(("size", "rss", "rss_shared"), _read("/proc/self/statm").split()):
        rows.append([name, int(pages) * _PAGES])
    available = [line.split()[1] for line in _read("/proc/meminfo").splitlines() if line.startswith("MemAvailable:")]
    rows += [["host_available", int(kib) / 1024] for kib in available]
    cgroup = "/sys/fs/cgroup" + _read("/proc/self/cgroup").partition("0::")[2].strip()
    for file in ("memory.current", "memory.max"):
        text = _read(f"{cgroup}/{file}").strip()
        rows += [["cgroup " + file, int(text) / MIB]] if text.isdigit() else []
    with suppress(OSError):
        shm = os.statvfs("/dev/shm")
        rows.append(["shm_free", shm.f_bavail * shm.f_frsize / MIB])
    cuda: Any = loaded("torch.cuda")
    if cuda is not None and cuda.is_initialized():  # counters of the allocator, kept on the host
        for number in range(cuda.device_count()):
            rows.append([f"cuda:{number} allocated", cuda.memory_allocated(number) / MIB])
            rows.append([f"cuda:{number} reserved", cuda.memory_reserved(number) / MIB])
    return ("name", "mib"), rows


def _rows(recorder: Recorder) -> Part:
    rows: list[Sequence[object]] = []
    for table, num_rows in ROWS.items():
        buffer = recorder.buffers.get(table)
        writer = None if buffer is None else buffer.writer
        if buffer is not None and writer is not None:
            names = [column.name for column in buffer.table.columns]
            rows += [[table, dict(zip(names, row))] for row in writer.newest(num_rows)]
    return ("table", "row"), rows


_SECTIONS: dict[str, Callable[[Recorder], Part]] = {
    "children": _children,
    "memory": _memory,
    "tasks": _tasks,
    "rows": _rows,
}


def _read(path: str) -> str:
    """Return a small file of /proc; empty if it is gone or hidden."""
    try:
        with open(path, "rb") as file:
            return file.read(65_536).decode("utf-8", "replace")
    except OSError:
        return ""


def _json(value: object) -> bytes:
    return json.dumps(value, default=str).encode()
