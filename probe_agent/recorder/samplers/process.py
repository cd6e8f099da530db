"""Resources of the process, once a second: CPU time by group of threads, memory, descriptors, I/O.

Runs on the recorder's thread: 35 to 50 µs per second with 3 to 19 threads and 0.2 ms with 200 threads and 2,000 open
files (benchmarks/samplers.py), and 6 µs per thread, 0.1 ms at most, for run delays; mostly in system calls, which
release the GIL. The CPU time of a thread is one clock read, not a file. Unnamed threads are never read: they are the
remainder of the process's own clock.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
from _thread import get_native_id
from time import CLOCK_THREAD_CPUTIME_ID, clock_gettime_ns, monotonic, perf_counter, process_time_ns, time_ns
from typing import Any

from ..guest.main_thread import main_ident
from ..ring.table import MIB, NULL_FLOAT, NULL_INT, Column, Table
from ..source import Awaited, Recorder
from ..source import Source as BaseSource

__all__ = ["Samples", "Source"]

INTERVAL_S = 1.0
#: Interval of the search for threads named by torch; 20 µs, and 13 µs per new thread.
NAMES_S = 10.0
#: PSS makes the kernel walk every page: 8 ms for torch alone, 10 to 70 ms per GiB, and a thread that calls mmap may
#: have to wait. So it is rare, takes at most a thousandth of the time, and is skipped for large processes.
PSS_S = 60.0
PSS_SHARE = 1e-3
PSS_MAX_RSS = 4 * 1024.0

#: Threads whose run delay is read in one sample, at 6 µs each.
MAX_DELAYS = 16

_PAGES = os.sysconf("SC_PAGE_SIZE") / MIB
#: Prefix of a thread name set by torch -> group.
_NAMED = {
    "pt_autograd": "autograd",
    "pt_data": "data",
    "pt_gloo": "collectives",
    "pt_nccl": "collectives",
    "pt_tcpstore": "collectives",
}
_GROUPS = ("training", "probe", "autograd", "data", "collectives", "python")


class Samples(Table):
    name = "process.samples"
    doc = "Resources used by the process, one row per second, for the last two hours."
    capacity = 7_680  # a sixteenth of a full ring is never shown
    columns = (
        Column("step", "int", "", "number of the running step; -1 before the first"),
        Column("ts", "time", "UTC", "end of the period"),
        Column("period", "float", "s", "time since the previous sample, which CPU times and counts cover"),
        Column("cpu", "float", "s", "CPU time of all threads; divided by period: busy cores"),
        Column("cpu_system", "float", "s", "part of cpu spent in the kernel"),
        Column("cpu_training", "float", "s", "CPU time of the training thread; of the main thread until that is known"),
        Column("run_delay", "float", "s", "time the training thread was ready to run but waited for a CPU; NULL if the "
               "kernel does not tell"),
        Column("run_delay_others", "float", "s", "the same of all other threads, added up; of more than 16, what came "
               "together since each was last looked at"),
        Column("cpus", "text", "", "CPUs that the training thread may use, such as 0-3,8"),
        Column("nice", "int or null", "", "niceness of the training thread"),
        Column("cpu_probe", "float", "s", "CPU time of the recorder's thread"),
        Column("cpu_autograd", "float", "s", "CPU time of torch's autograd threads: backward on a GPU"),
        Column("cpu_data", "float", "s", "CPU time of torch's pin-memory threads; loader workers: python.workers"),
        Column("cpu_collectives", "float", "s", "CPU time of the threads of gloo, NCCL and the store"),
        Column("cpu_python", "float", "s", "CPU time of all other threads that Python started"),
        Column("cpu_native", "float", "s", "remaining CPU time: OpenMP, MKL, the CUDA driver, and threads that ended"),
        Column("num_threads", "int", "", "threads of the process"),
        Column("uncollected", "int", "", "objects of Python that were made since its collector ran last, without those "
               "that were freed: it runs from about 2,000 on, unless it is off"),
        Column("rss", "float", "MiB", "resident memory"),
        Column("rss_shared", "float", "MiB", "part of rss in files and shared memory, the recorder's rings included"),
        Column("vm_data", "float", "MiB", "memory of its own that it may write, in use already or not (VmData)"),
        Column("pss", "float", "MiB", "proportional set size: shared pages divided among their users; once a minute, "
               "NULL above 4 GiB"),
        Column("num_children", "int", "", "child processes that multiprocessing has started, such as loader workers"),
        Column("children_rss", "float", "MiB", "sum of their resident memory; shared pages count in each"),
        Column("children_shared", "float", "MiB", "part of children_rss in files and shared memory"),
        Column("page_faults", "int", "", "minor page faults: mapped without reading a disk"),
        Column("major_faults", "int", "", "major page faults: read from a disk"),
        Column("switches", "int", "", "voluntary context switches: a thread waited for something"),
        Column("forced_switches", "int", "", "involuntary context switches: a thread lost its CPU to another one"),
        Column("num_descriptors", "int", "", "open file descriptors"),
        Column("shm_used", "float", "MiB", "space used in the process's /dev/shm by all processes; NULL without one"),
        Column("shm_free", "float", "MiB", "space free in /dev/shm"),
        Column("io_read", "float", "MiB", "read by system calls, page cache included; NULL if not permitted"),
        Column("io_written", "float", "MiB", "written by system calls"),
        Column("disk_read", "float", "MiB", "read from storage"),
        Column("disk_written", "float", "MiB", "written to storage"),
    )  # fmt: skip


class Source(BaseSource):
    name = "process.samples"
    tables = (Samples,)
    waits_for = Awaited(f"its first row comes {INTERVAL_S:g} s after the recorder has started", "query it again")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._buffer = recorder.buffer(Samples)
        self._named: dict[int, str] = {}
        self._unnamed: set[int] = set()
        self._threads: dict[int, int] = {}  # CPU time of each watched thread at the last sample; 0 is the recorder's
        self._main = main_ident()
        self._delayed: tuple[int, int] | None = None  # training thread, and its run delay in ns so far
        self._delayed_others: dict[int, int] = {}  # and of the others
        self._to_ask: list[int] = []  # other threads, in the order in which they are looked at
        self._cpus: tuple[set[int], str] = set(), ""  # those it may use, and the same as text
        self._names_due = self._pss_due = 0.0
        self._last = monotonic()
        self._counters = self._count()

    def start(self) -> None:
        self._look_for_names()
        self._cpu_by_group()
        self._run_delay(self._training_tid())
        self._run_delay_others(self._training_tid())

    def tick(self) -> None:
        now = monotonic()
        period = now - self._last
        if period < INTERVAL_S:
            return
        self._last = now
        if now >= self._names_due:
            self._look_for_names()
        counters, before = self._count(), self._counters
        self._counters = counters
        change = {name: counters[name] - before[name] for name in counters if name in before}
        groups = self._cpu_by_group()
        training = self._training_tid()
        cpu = change["cpu"]
        _, resident, shared, _, _, data, _ = (int(pages) * _PAGES for pages in _read("/proc/self/statm").split())
        shm = _shm()
        self._buffer.rows.append(
            (
                self.recorder.step.number,
                time_ns() // 1000,
                period,
                cpu,
                change["system"],
                groups["training"],
                self._run_delay(training),
                self._run_delay_others(training),
                self._buffer.number(self._cpus_of(training)),
                _niceness(training),
                *(groups[name] for name in _GROUPS[1:]),
                max(0.0, cpu - sum(groups.values())),
                os.stat("/proc/self/task").st_nlink - 2,
                gc.get_count()[0],
                resident,
                shared,
                data,
                self._pss(now, resident),
                *_children(),
                int(change["page_faults"]),
                int(change["major_faults"]),
                int(change["switches"]),
                int(change["forced_switches"]),
                _num_descriptors(),
                *shm,
                *(change.get(name, NULL_FLOAT) for name in ("rchar", "wchar", "read_bytes", "write_bytes")),
            )
        )

    def _count(self) -> dict[str, float]:
        """Return the current values of the counters that only grow."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        counters = {
            "cpu": process_time_ns() * 1e-9,
            "system": usage.ru_stime,
            "page_faults": usage.ru_minflt,
            "major_faults": usage.ru_majflt,
            "switches": usage.ru_nvcsw,
            "forced_switches": usage.ru_nivcsw,
        }
        try:
            lines = _read("/proc/self/io").splitlines()
        except OSError:
            return counters  # an undumpable process may not read its own either
        for line in lines:
            name, _, value = line.partition(": ")
            counters[name] = int(value) / MIB
        return counters

    def _training_tid(self) -> int:
        """Return the kernel's number of the training thread; of the main thread until that is known."""
        ident = self.recorder.step.thread
        threading: Any = sys.modules.get("threading")
        thread = None if ident in (None, self._main) else getattr(threading, "_active", {}).get(ident)
        return getattr(thread, "native_id", None) or os.getpid()

    def _run_delay(self, tid: int) -> float:
        """Return the seconds that a thread has waited for a CPU since the last call."""
        so_far = _delay_ns(tid)
        before, self._delayed = self._delayed, None if so_far is None else (tid, so_far)
        if so_far is None or before is None or before[0] != tid:
            return NULL_FLOAT
        return (so_far - before[1]) * 1e-9

    def _run_delay_others(self, training: int) -> float:
        """Return the seconds that the other threads, without the recorder's, have waited for a CPU since each was last
        looked at. Of many threads some are looked at each time, the others the next."""
        if not self._to_ask:
            living = set(map(int, os.listdir("/proc/self/task"))) - {get_native_id()}
            self._delayed_others = {tid: so_far for tid, so_far in self._delayed_others.items() if tid in living}
            self._to_ask = sorted(living)
        total, is_known = 0, False
        for tid in self._to_ask[:MAX_DELAYS]:
            so_far = _delay_ns(tid)
            if so_far is None:
                continue
            before = self._delayed_others.get(tid)
            self._delayed_others[tid] = so_far
            if tid != training:
                is_known = True
                total += so_far - (so_far if before is None else before)
        del self._to_ask[:MAX_DELAYS]
        return total * 1e-9 if is_known else NULL_FLOAT

    def _cpus_of(self, tid: int) -> str | None:
        try:
            allowed = os.sched_getaffinity(tid)
        except OSError:
            return None  # it has ended
        if allowed != self._cpus[0]:
            self._cpus = allowed, _ranges(allowed)
        return self._cpus[1]

    def _cpu_by_group(self) -> dict[str, float]:
        """Return the CPU seconds of each group since the last call; a thread counts from when it was first seen."""
        groups = dict.fromkeys(_GROUPS, 0.0)
        seen: dict[int, int] = {}
        for tid, group in self._watched().items():
            try:
                spent = clock_gettime_ns(~tid << 3 | 6)  # the kernel's number for "CPU time of this thread"
            except OSError:
                self._named.pop(tid, None)
                continue  # it has ended
            seen[tid] = spent
            groups[group] += (spent - self._threads.get(tid, spent)) * 1e-9
        own = clock_gettime_ns(CLOCK_THREAD_CPUTIME_ID)
        groups["probe"] = (own - self._threads.get(0, own)) * 1e-9
        seen[0] = own
        self._threads = seen
        return groups

    def _watched(self) -> dict[int, str]:
        """Return the group of each thread whose time is measured by itself."""
        threading: Any = sys.modules.get("threading")
        main = self._main
        training = self.recorder.step.thread or main
        watched = dict(self._named)
        for ident, thread in dict(getattr(threading, "_active", {})).items():
            tid = os.getpid() if ident == main else getattr(thread, "native_id", None)
            if tid is not None:
                watched[tid] = "training" if ident == training else watched.get(tid, "python")
        watched.setdefault(os.getpid(), "training" if training == main else "python")
        watched.pop(get_native_id(), None)  # the recorder's own
        return watched

    def _look_for_names(self) -> None:
        """Find the threads named by torch."""
        self._names_due = monotonic() + NAMES_S
        living = {int(name) for name in os.listdir("/proc/self/task")}
        self._unnamed &= living
        for tid in living - self._unnamed - self._named.keys():
            try:
                name = _read(f"/proc/self/task/{tid}/comm")
            except OSError:
                continue  # it has ended
            group = next((group for beginning, group in _NAMED.items() if name.startswith(beginning)), None)
            if group is None:
                self._unnamed.add(tid)
            else:
                self._named[tid] = group

    def _pss(self, now: float, rss: float) -> float:
        if now < self._pss_due or rss > PSS_MAX_RSS:
            return NULL_FLOAT
        began = perf_counter()
        try:
            lines = _read("/proc/self/smaps_rollup").splitlines()
        except OSError:
            lines = []  # a kernel before 4.14, or an undumpable process
        self._pss_due = now + max(PSS_S, (perf_counter() - began) / PSS_SHARE)
        return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), NULL_FLOAT)


def _delay_ns(tid: int) -> int | None:
    """Return for how long a thread has waited for a CPU so far."""
    try:
        return int(_read(f"/proc/self/task/{tid}/schedstat").split()[1])
    except (OSError, IndexError):
        return None  # it has ended, or the kernel keeps no such statistics


def _ranges(numbers: set[int]) -> str:
    """Return numbers as the kernel writes them: 0-3,8."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def _niceness(tid: int) -> int:
    try:
        return os.getpriority(os.PRIO_PROCESS, tid)
    except OSError:
        return NULL_INT


def _children() -> tuple[int, float, float]:
    """Return the number of the processes that multiprocessing has started, their resident MiB, and those of it in files
    and shared memory; 15 µs each."""
    started: Any = getattr(sys.modules.get("multiprocessing.process"), "_children", ())
    sizes = []
    for child in list(started):
        pid = getattr(vars(child).get("_popen"), "pid", None)
        try:
            resident, shared = _read(f"/proc/{pid}/statm").split()[1:3]
            sizes.append((int(resident) * _PAGES, int(shared) * _PAGES))
        except (OSError, ValueError):
            continue  # it has ended
    return len(sizes), sum(size for size, _ in sizes), sum(shared for _, shared in sizes)


def _num_descriptors() -> int:
    """Return the number of open descriptors; Linux 6.2 and later tell it without a listing."""
    return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd")) - 1


def _shm() -> tuple[float, float]:
    """Return the used and free MiB of /dev/shm."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return NULL_FLOAT, NULL_FLOAT
    unit = found.f_frsize / MIB
    return (found.f_blocks - found.f_bfree) * unit, found.f_bavail * unit


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096).decode("ascii", "replace")
    finally:
        os.close(descriptor)
