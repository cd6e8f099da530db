"""A running job in which ranks are slowed down on command, and the cost by the job's own clock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import numpy as np

from benchmarks.machine import ROOT
from benchmarks.process import plain_environment

from .cases import NUM_RANKS, PHASES, Case

__all__ = ["Job", "Truth", "hog"]

PROGRAM = ROOT / "benchmarks" / "programs" / "straggling" / "job.py"
START_S = 240.0
CASE_S = 300.0
#: After the start the recorder and torch still load code.
WARM_UP_S = 8.0
#: Pairs of a healthy and a faulty block, from which the cost is taken.
NUM_PAIRS = 10
#: How long a rank looks at a plan that it does not know yet, at most.
NOTICE_S = 0.4
#: A CPU hog, and the number that share the core of a slowed rank: one alone costs a rank that mostly waits nothing.
HOG = "while True: pass"
NUM_HOGS = 4


@dataclass(frozen=True)
class Truth:
    """What was planted in a case, and its cost; times in seconds, windows in seconds since 1970."""

    kind: str
    what: str
    ranks: tuple[int, ...]
    phases: tuple[str, ...]
    every: int
    num_steps: int
    begin: float
    end: float
    #: Mean length of a step in the window, and of the healthy ones in the blocks after it.
    step_s: float
    healthy_s: float
    #: Mean of the planted seconds a step in the window, of each rank.
    planted_s: tuple[float, ...]
    #: Faulty blocks against healthy ones, a step: mean of the pairs but for the extremes, 95 % interval of the mean.
    cost_s: float
    cost_low_s: float
    cost_high_s: float
    #: Of the length of a faulty step.
    cost_share: float
    hosts: int
    beside: str
    load: float
    nice: int


class Job:
    """One running job; its ranks' clocks are files that they map."""

    def __init__(self, folder: Path, kind: str, num_hosts: int = 1, beside: str = "", nice: int = 0) -> None:
        self.folder, self.kind, self.num_hosts, self.beside, self.nice = folder, kind, num_hosts, beside, nice
        self._plan(what="nobody")
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={NUM_RANKS}"]
        command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", str(PROGRAM), str(folder), kind]
        command += [str(num_hosts)] if num_hosts > 1 else []
        self._output = (folder / "output").open("wb")
        environment = {**plain_environment(), "GLOO_SOCKET_IFNAME": "lo"}
        self._process = subprocess.Popen(
            command, stdout=self._output, stderr=self._output, env=environment, start_new_session=True
        )
        ready = [folder / f"pid-{rank}" for rank in range(NUM_RANKS)]
        self._until(lambda: self._have_priority() and all(path.exists() for path in ready), START_S)
        self.pids = [int(path.read_text()) for path in ready]
        self._clocks = [np.memmap(folder / f"clock-{rank}", dtype="<f8", mode="r").reshape(-1, 2) for rank in range(4)]
        self._until(lambda: self.steps_done() >= 60, START_S)
        sleep(WARM_UP_S)

    def _have_priority(self) -> bool:
        """Raise the priority of the started processes: each rank is a session of its own."""
        starter = self._process.pid
        for pid in (starter, *map(int, Path(f"/proc/{starter}/task/{starter}/children").read_text().split())):
            _set_priority(pid, self.nice)
        return True

    def steps_done(self) -> int:
        return min(int(np.searchsorted(clock[:, 0] == 0, True)) for clock in self._clocks)

    def lengths(self, begin: int, end: int) -> np.ndarray:
        """Return the lengths of these steps by the clock of rank 0 (in a pipeline, too, all are equally long on
        average)."""
        ended = np.mean([clock[begin - 1 : end, 0] for clock in self._clocks], axis=0)
        return np.diff(ended)

    def run(self, case: Case, num_steps: int, asked: Callable[[], object] = lambda: None) -> tuple[Truth, object]:
        """Apply a case for that many steps, run compare, then measure its cost by alternating healthy and faulty
        blocks."""
        done = self.steps_done()
        usual = float(np.median(self.lengths(done - 40, done)))
        seconds = case.seconds or usual * case.share / (1 - case.share) * case.every
        plan = {"what": case.what, "ranks": case.ranks, "seconds": seconds, "every": case.every}
        with _Outside(self, case, seconds) as outside:
            begin = self._start(plan, outside, 0, usual)
            self._until(lambda: self.steps_done() >= begin + num_steps + 3, CASE_S)
            load = os.getloadavg()[0]
            answer = asked()
            if case.is_healthy:
                turns, pairs = begin, 0
            else:
                turns, pairs = self._start(plan, outside, case.block, usual), NUM_PAIRS
                self._until(lambda: self.steps_done() >= turns + 2 * pairs * case.block + 1, CASE_S)
            self._plan(what="nobody")
        window = self.lengths(begin, begin + num_steps)
        planted = tuple(float(clock[begin : begin + num_steps, 1].mean()) for clock in self._clocks)
        if case.what == "stop":
            planted = tuple(seconds / case.every * (rank in case.ranks) for rank in range(NUM_RANKS))
        healthy, faulty = self._blocks(turns, pairs, case)
        differences = faulty - healthy if pairs else np.zeros(1)
        low, high = _interval(differences)
        cost = float(np.sort(differences)[1:-1].mean()) if pairs else 0.0
        truth = Truth(
            self.kind,
            case.what,
            case.ranks,
            PHASES[case.what],
            case.every,
            num_steps,
            float(min(clock[begin - 1, 0] for clock in self._clocks)),
            float(max(clock[begin + num_steps - 1, 0] for clock in self._clocks)),
            float(window.mean()),
            float(healthy.mean()) if pairs else float(window.mean()),
            planted,
            cost,
            low,
            high,
            cost / (cost + float(healthy.mean())) if pairs else 0.0,
            self.num_hosts,
            self.beside,
            load,
            self.nice,
        )
        return truth, answer

    def rest(self) -> None:
        """Have all ranks stop at one step, and stay alive."""
        until = self.steps_done() + 40
        self._plan(what="nobody", until=until)
        self._until(lambda: self.steps_done() >= until, CASE_S)

    def end(self) -> None:
        (self.folder / "stop").touch()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait(30)
        self._output.close()

    def _start(self, plan: dict[str, object], outside: _Outside, block: int, usual: float) -> int:
        begin = self.steps_done() + 10 + int(NOTICE_S / usual)
        begin += -begin % 10
        self._plan(**plan, block=block, **{"from": begin})
        outside.begin, outside.block = begin, block
        return begin

    def _plan(self, **plan: object) -> None:
        (self.folder / "plan.new").write_text(json.dumps(plan))
        (self.folder / "plan.new").rename(self.folder / "plan")

    def _blocks(self, begin: int, pairs: int, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean length of a step in each healthy block, and in the faulty one that follows: the mean, because
        the cost that `compare` gives is the mean over the steps."""
        if not pairs:
            return np.zeros(0), np.zeros(0)
        lengths = self.lengths(begin, begin + 2 * pairs * case.block).reshape(2 * pairs, case.block).mean(axis=1)
        return lengths[::2], lengths[1::2]

    def _until(self, condition: Callable[[], object], timeout_s: float) -> None:
        deadline = monotonic() + timeout_s
        while not condition():
            if monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError((self.folder / "output").read_text()[-5_000:] or "the job stands still")
            sleep(0.05)


class _Outside:
    """Faults applied to a rank from outside: stops, and a hog on its core, in the steps in which they are planned."""

    def __init__(self, job: Job, case: Case, seconds: float) -> None:
        self.job, self.case, self.seconds = job, case, seconds
        self.begin, self.block = sys.maxsize, 0
        self._ended = threading.Event()
        self._hogs: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> _Outside:
        self._thread = threading.Thread(target={"stop": self._stop, "hog": self._hog}.get(self.case.what, int))
        if self.case.what == "hog":
            for rank, pid in enumerate(self.job.pids):
                _pin(pid, {0} if rank in self.case.ranks else {1})
            self._hogs = [hog(self.job.nice, {0}) for _ in range(NUM_HOGS)]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for each in self._hogs:
            each.kill()
            each.wait()
        if self._hogs:
            for pid in self.job.pids:
                _pin(pid, set(range(os.cpu_count() or 1)))

    def _is_now(self) -> bool:
        since = self.job.steps_done() - self.begin
        return since >= 0 and not (self.block and since // self.block % 2 == 0)

    def _stop(self) -> None:
        last = -1
        while not self._ended.wait(0.002):
            number = self.job.steps_done() // self.case.every
            if number != last and self._is_now():
                last = number
                for rank in self.case.ranks:
                    os.kill(self.job.pids[rank], signal.SIGSTOP)
                sleep(self.seconds)
                for rank in self.case.ranks:
                    os.kill(self.job.pids[rank], signal.SIGCONT)

    def _hog(self) -> None:
        while not self._ended.wait(0.005):
            for each in self._hogs:
                each.send_signal(signal.SIGCONT if self._is_now() else signal.SIGSTOP)


def hog(nice: int, cores: set[int] | None = None) -> subprocess.Popen[bytes]:
    """Start a process that uses a CPU all the time; on these cores alone, it is stopped until it gets SIGCONT."""
    process = subprocess.Popen([sys.executable, "-c", HOG], start_new_session=True)
    _set_priority(process.pid, nice)
    if cores is not None:
        os.sched_setaffinity(process.pid, cores)
        process.send_signal(signal.SIGSTOP)
    return process


def _set_priority(pid: int, nice: int) -> None:
    """Set the priority, also among sessions, of which each rank is one."""
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for task in os.listdir(f"/proc/{pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(task), nice)
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def _pin(pid: int, cores: set[int]) -> None:
    for task in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(task), cores)


def _interval(values: np.ndarray) -> tuple[float, float]:
    """Return the middle 95 % of the means of samples drawn from these."""
    chance = np.random.default_rng(1)
    means = chance.choice(values, (2_000, len(values))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
