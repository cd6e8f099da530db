"""Delays that a rank takes on command, and the clock of its steps.

FOLDER/plan says what is slow from which step on (`benchmarks/stragglers/job.py` writes it); FOLDER/clock-RANK is a
mapped file with two doubles for each step: when it ended, and the seconds that were planted in it on this rank.
Runs on the training thread: a stat of a file and a store in memory for each step.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import struct
import threading
import time
from collections import Counter
from pathlib import Path

import torch

__all__ = ["MAX_STEPS", "RECORD", "Planted"]

MAX_STEPS = 200_000
RECORD = struct.Struct("dd")

#: What is slow -> the places of the program that take the time; others are a place themselves.
PLACES = {
    "loader": ("data",),
    "uneven": ("forward",),
    "collector": ("forward",),
    "logging": ("after",),
    "checkpoint": ("after",),
    "host": ("data", "forward", "backward"),
}


class Planted:
    """Return what is slow now on this rank."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self.folder, self.rank, self.world_size = folder, rank, world_size
        self.number = 0
        path = folder / f"clock-{rank}"
        path.write_bytes(b"")
        os.truncate(path, MAX_STEPS * RECORD.size)
        with path.open("r+b") as file:
            self._clock = mmap.mmap(file.fileno(), 0)
        #: Where the plan ends: whether the job's loop looks at `is_over`, or the process ends.
        self.returns = self.is_over = False
        self._read_at = 0
        self._plan: dict[str, object] = {"what": "nobody"}
        self._places: tuple[str, ...] = ()
        self._extra = 0.0
        self._seconds = 0.0
        self._calls: Counter[str] = Counter()
        self._usual_calls: Counter[str] = Counter()
        self._collector_debt, self._collection_s = 0.0, 0.0
        self._keeps_gil = threading.Event()

    @property
    def begin(self) -> int:
        """Return the step from which on something is planned."""
        return self._plan.get("from", 0)

    def pause(self, place: str, usual: float = 0.0) -> None:
        """Take the time that every rank takes here, and the planted delay."""
        self._calls[place] += 1
        if usual:
            time.sleep(usual)
        if self._extra and place in self._places:
            began = time.perf_counter()
            calls = sum(self._usual_calls[each] for each in self._places) or 1
            self._spend(self._extra / calls)
            self._seconds += time.perf_counter() - began

    def step_ends(self) -> None:
        """Record the step and read the plan for the next; wait for the file `stop` where the plan ends."""
        RECORD.pack_into(self._clock, self.number * RECORD.size, time.time(), self._seconds)
        self.number += 1
        self._seconds = 0.0
        self._usual_calls, self._calls = self._calls, Counter()
        path = str(self.folder / "plan")
        changed = os.stat(path).st_mtime_ns
        if changed != self._read_at:
            self._read_at = changed
            self._plan = json.loads(Path(path).read_text())
            self._places = PLACES.get(self._plan["what"], (self._plan["what"],))
        is_mine = self._is_mine()
        self._extra = self._plan["seconds"] if is_mine else 0.0
        self._keep_gil(is_mine and self._plan["what"] == "gil")
        if self.number == self._plan.get("until"):
            while not (self.folder / "stop").exists():
                time.sleep(0.1)
            if not self.returns:
                os._exit(0)
            self.is_over = True

    def _is_mine(self) -> bool:
        plan = self._plan
        since = self.number - plan.get("from", 0)
        if plan["what"] == "nobody" or since < 0 or self.number % plan["every"] != 0:
            return False
        if plan["block"] and since // plan["block"] % 2 == 0:
            return False
        if plan["what"] == "uneven":
            return (self.number * 2_654_435_761 >> 7) % self.world_size == self.rank
        return self.rank in plan["ranks"]

    def _keep_gil(self, is_now: bool) -> None:
        """Have a second thread count while `is_now`, which keeps the GIL for its switch interval each time."""
        if is_now and not self._keeps_gil.is_set():
            self._keeps_gil.set()
            threading.Thread(target=self._count, name="counter", daemon=True).start()
        elif not is_now:
            self._keeps_gil.clear()

    def _count(self) -> None:
        number = 0
        while self._keeps_gil.is_set():
            number += 1

    def _spend(self, seconds: float) -> None:
        what = self._plan["what"]
        if what == "collector":
            self._collector_debt += seconds
            if self._collector_debt >= self._collection_s:
                began = time.perf_counter()
                gc.collect()
                self._collection_s = time.perf_counter() - began
                self._collector_debt -= self._collection_s
        elif what == "optimizer":
            work = torch.ones(64, 64)
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                work = work @ work * 0.01
        elif what == "checkpoint":
            until = time.perf_counter() + seconds
            torch.save({"weights": torch.zeros(20_000)}, self.folder / f"checkpoint-{self.rank}")
            time.sleep(max(0.0, until - time.perf_counter()))
        elif what == "logging":
            until = time.perf_counter() + seconds
            with (self.folder / f"log-{self.rank}").open("w") as log:
                while time.perf_counter() < until:
                    log.write(f"step {self.number}\n")
                    log.flush()
                    time.sleep(0.001)
        else:
            time.sleep(seconds)
