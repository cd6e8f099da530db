"""`process.samples` of this very process, with a known load."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from probe_agent.recorder.samplers import process
from probe_agent.recorder.samplers.process import INTERVAL_S, MAX_DELAYS, Samples, Source

OFTEN_S = 0.25


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(process, "INTERVAL_S", OFTEN_S)


def burn(seconds: float) -> None:
    """Spend CPU time on the calling thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1_000))


def test_cpu_time_goes_to_the_thread_that_spent_it(sampling):
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        go.wait()
        burn(0.3)
        done.set()
        go.clear()
        go.wait()

    thread = threading.Thread(target=work)
    thread.start()
    it = sampling(Source, Samples)
    it.recorder.step.thread = thread.ident
    it.next_row()

    go.set()
    done.wait()
    burn(0.2)
    row = it.next_row()
    num_threads = len(os.listdir("/proc/self/task"))

    go.set()
    thread.join()
    assert row["period"] >= OFTEN_S
    assert 0.3 <= row["cpu_training"] < 0.35
    assert 0.2 <= row["cpu_python"] < 0.3, "that of the test itself"
    assert 0 < row["cpu_probe"] < 0.1
    assert row["cpu"] == pytest.approx(0.5 + row["cpu_probe"], abs=0.2)
    assert row["num_threads"] == num_threads


def test_run_delay_is_the_time_the_thread_waits_for_a_cpu_that_another_process_uses(sampling):
    it = sampling(Source, Samples)
    allowed = os.sched_getaffinity(0)
    cpu = min(allowed)
    program = f"import os\nos.sched_setaffinity(0, [{cpu}])\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program]) as hog:
        try:
            os.sched_setaffinity(0, [cpu])
            it.next_row()
            began, spent = time.perf_counter(), time.thread_time()
            burn(0.2)
            row = it.next_row()
            late = time.perf_counter() - began - (time.thread_time() - spent)
        finally:
            os.sched_setaffinity(0, allowed)
            hog.kill()

    assert row["cpus"] == str(cpu)
    assert row["nice"] == os.getpriority(os.PRIO_PROCESS, 0)
    assert 0.02 < row["run_delay"] < late + 0.1
    assert (row["run_delay_others"] or 0.0) < row["run_delay"], "that of the test's own thread is not in it"


def test_run_delay_of_other_threads_is_counted_apart_also_where_they_are_many(sampling):
    allowed = os.sched_getaffinity(0)
    cpu = min(allowed)
    program = f"import os\nos.sched_setaffinity(0, [{cpu}])\nwhile True: pass"
    go, burnt, end = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        go.wait()
        burn(0.2)
        burnt.set()
        end.wait()

    threads = [threading.Thread(target=end.wait) for _ in range(MAX_DELAYS)]
    with subprocess.Popen([sys.executable, "-c", program]) as hog:
        try:
            os.sched_setaffinity(0, [cpu])
            threads.append(threading.Thread(target=work))
            for thread in threads:
                thread.start()
            os.sched_setaffinity(0, allowed)
            it = sampling(Source, Samples)  # now: a round of looks is over the threads that live when it begins
            it.recorder.step.thread = threading.get_ident()
            looks = len(os.listdir("/proc/self/task")) // MAX_DELAYS + 1  # until each thread has been looked at
            for _ in range(looks):
                it.next_row()
            go.set()
            burnt.wait()
            rows = [it.next_row() for _ in range(looks)]
        finally:
            os.sched_setaffinity(0, allowed)
            go.set()
            end.set()
            hog.kill()

    assert max(row["run_delay_others"] for row in rows) > 0.02, rows


@pytest.mark.torch
def test_time_of_unnamed_threads_is_the_remainder(sampling):
    torch = pytest.importorskip("torch")
    if torch.get_num_threads() < 2:
        pytest.skip("one OpenMP thread, which is the caller's")
    it = sampling(Source, Samples)
    it.next_row()
    began = time.process_time() - time.thread_time()

    left = torch.ones(1500, 1500)
    while time.process_time() - time.thread_time() - began < 0.2:
        left @ left
    row = it.next_row()

    assert row["cpu_native"] >= 0.2 - 0.05


def test_memory_descriptors_and_io_are_those_of_the_process(sampling, tmp_path):
    it = sampling(Source, Samples)
    before = it.next_row()

    held = bytearray(64 << 20)
    held[::4096] = b"x" * len(held[::4096])
    opened = [os.open(tmp_path / str(n), os.O_CREAT | os.O_WRONLY) for n in range(7)]
    os.write(opened[0], bytes(3 << 20))
    row = it.next_row()

    for descriptor in opened:
        os.close(descriptor)
    assert row["rss"] - before["rss"] == pytest.approx(64, abs=16)
    assert row["page_faults"] >= 32, "a fault for each 2 MiB at least"
    assert row["num_descriptors"] - before["num_descriptors"] == 7
    assert row["io_written"] == pytest.approx(3, abs=0.5)
    assert before["pss"] is not None
    assert row["pss"] is None, "PSS is read once a minute"
    assert before["pss"] <= before["rss"]


def test_dev_shm_is_that_of_the_process(sampling):
    found = os.statvfs("/dev/shm")
    it = sampling(Source, Samples)

    row = it.next_row()

    assert row["shm_used"] + row["shm_free"] == pytest.approx(found.f_blocks * found.f_frsize / 2**20, rel=0.01)


def test_two_hours_fit():
    kept = Samples.capacity * 15 // 16

    assert kept * INTERVAL_S >= 2 * 3600
    assert Samples.capacity * Samples.row_struct().size < 2.2 * 2**20
