"""Jobs that hang, or do not, and what `probe hang` and other tools say of them.

Each outcome is a line of JSON in `--into`. A run that is ended goes on where it was, and the tables are made of all
lines. The second round of a fault attaches before it happens; the first one, and every other, when the job hangs.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

from benchmarks.machine import commit, provenance
from benchmarks.spread import table

from .job import CULPRIT, WORLD_SIZE, start
from .others import OTHERS, ask_others

__all__ = ["main"]


@dataclass(frozen=True)
class Fault:
    """A fault, and the verdicts that fit it."""

    what: str
    causes: tuple[str, ...] = ("absent",)
    ranks: tuple[int, ...] = (CULPRIT,)
    states: tuple[str, ...] = ("hangs",)
    #: Of a rank that is gone only a recorder that was in it before can tell.
    attach: tuple[str, ...] = ("after", "before")


def _gone(what: str) -> Fault:
    return Fault(what, ("gone",), states=("hangs", "died"), attach=("before",))


FAULTS = {
    "sleep": Fault("rank 2 sleeps"),
    "first_step": Fault("rank 2 sleeps in the first step"),
    "lock": Fault("rank 2 waits for a lock"),
    "rlock": Fault("rank 2 waits for an RLock"),
    "pipe": Fault("rank 2 reads a pipe that is never written"),
    "loader": Fault("rank 2's data set hangs"),
    "worker": Fault("rank 2's data loader workers hang"),
    "worker_disk": Fault("rank 2's data loader workers wait in the kernel"),
    "save": Fault("rank 2 is stuck in torch.save"),
    "disk": Fault("rank 2 waits in the kernel (state D)"),
    "gil": Fault("rank 2 holds the GIL in C"),
    "spins": Fault("rank 2 is in an endless loop"),
    "stopped": Fault("rank 2 gets SIGSTOP", ("gone",)),
    "destroy": Fault("rank 2 destroys its groups, and sleeps", ("absent", "left")),
    "swallowed": Fault("rank 2 swallows an exception and calls a barrier", ("mismatch", "absent")),
    "operation": Fault("rank 2 calls all_gather", ("mismatch",)),
    "order": Fault("ranks 0 and 2 call two groups in another order", ("cycle",), (0, CULPRIT)),
    "send": Fault("rank 2 sends, and rank 0 does not receive", ("no peer", "cycle", "absent"), (0, CULPRIT)),
    "mesh_2d": Fault("rank 2 sleeps, on a mesh of 2 by 2"),
    "fsdp": Fault("rank 2 sleeps, FSDP2"),
    "pipeline": Fault("rank 2 sleeps, pipeline of sends and receives", ("no peer", "absent")),
    "batched": Fault("rank 2 sleeps, ring of batched sends and receives", ("no peer", "absent")),
    "waits_later": Fault("rank 2 sleeps, all_reduce with async_op"),
    "objects": Fault("rank 2 sleeps, all_gather_object"),
    "monitored": Fault("rank 2 sleeps, monitored_barrier"),
    "spawned": Fault("rank 2 sleeps, ranks of torch.multiprocessing.spawn"),
    "planned": Fault("rank 2 sleeps, ranks with PROBE=1"),
    "few": Fault("rank 3 never starts", ("init",), (3,), ("unknown", "hangs")),
    "gone_store": Fault("the host of the job's store does not answer", ("store",), (0, 1, CULPRIT)),
    "worker_dies": _gone("rank 2's data loader worker is killed"),
    "exited": _gone("rank 2 exits in the middle"),
    "raised": _gone("rank 2 raises"),
    "killed": _gone("rank 2 is killed (SIGKILL)"),
    "segv": _gone("rank 2 crashes (SIGSEGV)"),
    "aborted": _gone("rank 2 aborts"),
    "memory": _gone("rank 2 is out of memory (ulimit -v)"),
}
HEALTHY = {
    "none": "trains",
    "slow": "rank 2 takes 1.5 s longer a step",
    "evaluates": "evaluates for 25 s",
    "checkpoints": "rank 0 saves for 25 s",
    "compiles": "compiles",
    "storage": "rank 2 waits 90 s for storage",
}
#: A job may take this long to import torch and to reach the step in which it hangs.
START_S, GIVE_UP_S, PAUSE_S = 400.0, 120.0, 1.0
#: A job hangs if it has made no step for so long.
STILL_S = 6.0
#: What may be healthy is given less time than usual in a job that is known to hang.
PATIENCE_S = 20
#: Looks at one healthy job before the next one is started.
LOOKS_A_JOB = 25
Answer = dict[str, Any]  # JSON


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", nargs="*", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--looks", type=int, default=0, help="looks at jobs that do not hang, all kinds together")
    parser.add_argument(
        "--others", type=Path, help="ask other tools in the first round; folder with pystack and probing"
    )
    parser.add_argument("--into", type=Path, default=Path("hangs.jsonl"), help="file of outcomes; it is added to")
    parser.add_argument("--for", dest="seconds", type=float, default=float("inf"), help="start nothing after so long")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the jobs end with it
    began = monotonic()
    for kind, name, attach in _to_do(args.faults, args.rounds, args.looks, args.into):
        if monotonic() - began > args.seconds:
            break
        with_others = args.others if kind == "fault" and not _lines(args.into, kind, name) else None
        outcome = _once(name, attach, with_others) if kind == "fault" else _look_at_healthy(name)
        line = {
            "kind": kind,
            "name": name,
            "commit": commit(),
            "load": os.getloadavg()[0],
            "at": time.time(),
            **outcome,
        }
        with args.into.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), file=sys.stderr, flush=True)
    _print_tables(args.into)


def _lines(into: Path, kind: str, name: str) -> list[Answer]:
    lines: list[Answer] = [json.loads(line) for line in into.read_text().splitlines()] if into.exists() else []
    return [line for line in lines if (line["kind"], line["name"]) == (kind, name)]


def _to_do(faults: Sequence[str], rounds: int, looks: int, into: Path) -> Iterator[tuple[str, str, str]]:
    """Iterate over what the file does not hold yet, one round of everything after the other."""
    for number in range(max(rounds, 1 if looks else 0, -(-looks // (LOOKS_A_JOB * len(HEALTHY))))):
        for name in faults if number < rounds else ():
            if len(_lines(into, "fault", name)) <= number:
                attach = FAULTS[name].attach
                yield "fault", name, attach[number % len(attach)]
        for name in HEALTHY:
            num_looks = sum(line["looks"] for line in _lines(into, "healthy", name))
            if num_looks < min(looks / len(HEALTHY), (number + 1) * LOOKS_A_JOB):
                yield "healthy", name, "before"


def _once(name: str, attach: str, others: Path | None) -> Answer:
    """Run one job until `probe hang` has said who holds it up."""
    fault = FAULTS[name]
    with _running(name, attach, with_server=others is not None) as (folder, pids):
        began = monotonic()
        while True:
            verdict = _ask(pids, "hang", "--patience", str(PATIENCE_S), "--format", "json")["verdict"]
            took_s = monotonic() - began
            if (verdict["state"] in fault.states and verdict["ranks"]) or took_s > GIVE_UP_S:
                break
            sleep(PAUSE_S)
        culprit = pids[min(fault.ranks[-1], len(pids) - 1)]
        said = ask_others(folder, culprit, WORLD_SIZE, others) if others is not None else ()
    is_right = verdict["state"] in fault.states and verdict["cause"] in fault.causes
    is_right = is_right and bool(verdict["ranks"]) and set(verdict["ranks"]) <= set(fault.ranks)
    told = {key: verdict[key] for key in ("state", "cause", "ranks", "sentence")}
    return {"attach": attach, "right": is_right, "seconds": round(took_s, 1), **told, "others": list(said)}


def _look_at_healthy(name: str) -> Answer:
    """Look at one healthy job again and again."""
    said: Counter[str] = Counter()
    wrong = []
    with _running(name, "before") as (_, pids):
        while said.total() < LOOKS_A_JOB:
            verdict = _ask(pids, "hang", "--between", "0.5", "--format", "json")["verdict"]
            said[verdict["state"]] += 1
            if verdict["state"] not in ("no hang", "slow"):
                wrong.append(verdict["sentence"])
    return {"looks": said.total(), "said": dict(said), "wrong": wrong}


def _print_tables(into: Path) -> None:
    rows, looks = [], []
    for name, fault in FAULTS.items():
        lines = _lines(into, "fault", name)
        if lines:
            shown = next((line for line in lines if not line["right"]), lines[0])
            others = next((line["others"] for line in lines if line["others"]), ["not asked"] * len(OTHERS))
            right = f"{sum(line['right'] for line in lines)} of {len(lines)}"
            took = {
                attach: [line["seconds"] for line in lines if line["attach"] == attach]
                for attach in ("after", "before")
            }
            times = [f"{median(seconds):.0f} s" if seconds else "" for seconds in took.values()]
            rows.append((fault.what, right, *times, shown["sentence"].replace("|", "\\|"), *others))
    for name, what in HEALTHY.items():
        lines = _lines(into, "healthy", name)
        if lines:
            said = sum((Counter(line["said"]) for line in lines), Counter[str]())
            wrong = "; ".join(sentence for line in lines for sentence in line["wrong"])
            num_said = ", ".join(f"{state}: {num}" for state, num in said.items())
            looks.append((what, str(said.total()), str(len(lines)), num_said, wrong))
    print(table(("fault", "right", "attached after", "before", "verdict", *OTHERS), rows))
    print()
    print(table(("job", "looks", "jobs", "said", "wrong"), looks))
    print()
    print(provenance())
    commits = Counter(json.loads(line)["commit"] for line in into.read_text().splitlines())
    print("Outcomes by commit: " + ", ".join(f"{name}: {num}" for name, num in commits.items()) + ".")


@contextmanager
def _running(name: str, attach: str, *, with_server: bool = False) -> Iterator[tuple[Path, list[int]]]:
    """Run a job until this is left, with recorders in its ranks `before` it hangs; or wait until it hangs."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if with_server:
            os.environ["HANGS_DEBUG_SERVER"] = "1"
        processes = start(folder, name)
        os.environ.pop("HANGS_DEBUG_SERVER", None)
        try:
            num_ranks = WORLD_SIZE - (name == "few")
            _wait_for(folder, [f"{'rank' if name == 'few' else 'trains'}_{rank}" for rank in range(num_ranks)])
            pids = [int((folder / f"rank_{rank}").read_text()) for rank in range(num_ranks)]
            if attach == "before":
                _ask(pids, "ranks", "--format", "json")  # attaches
            elif name != "few":
                _wait_until_still(folder)
            yield folder, pids
        finally:
            for process in processes:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait_for(folder: Path, names: Sequence[str]) -> None:
    deadline = monotonic() + START_S
    while not all((folder / name).exists() for name in names):
        if monotonic() > deadline:
            raise TimeoutError(f"the job in {folder} has not begun within {START_S:.0f} s")
        sleep(0.1)


def _wait_until_still(folder: Path) -> None:
    deadline = monotonic() + START_S
    while time.time() - max(path.stat().st_mtime for path in folder.glob("trains_*")) < STILL_S:
        if monotonic() > deadline:
            raise TimeoutError(f"the job in {folder} goes on")
        sleep(0.5)


def _ask(pids: Sequence[int], *command: str) -> Answer:
    named = [word for pid in pids for word in ("-t", str(pid))]
    probe = str(Path(sys.executable).with_name("probe"))
    done = subprocess.run([probe, *named, *command], capture_output=True, text=True)
    if command[0] == "hang" and not done.stdout:
        raise RuntimeError(done.stderr)
    answer: Answer = json.loads(done.stdout) if command[0] == "hang" else {}
    return answer


if __name__ == "__main__":
    main()
