"""Jobs that hang, or do not, and what `probe hang` and other tools say of them."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

from benchmarks.machine import provenance
from benchmarks.spread import table

from .job import CULPRIT, WORLD_SIZE, start
from .others import OTHERS, ask_others

__all__ = ["main"]


@dataclass(frozen=True)
class Fault:
    """A fault, and the verdicts that fit it."""

    what: str
    causes: tuple[str, ...]
    ranks: tuple[int, ...] = (CULPRIT,)
    states: tuple[str, ...] = ("hangs",)


FAULTS = {
    "sleep": Fault("rank 2 sleeps", ("absent",)),
    "lock": Fault("rank 2 waits for a lock", ("absent",)),
    "pipe": Fault("rank 2 reads a pipe that is never written", ("absent",)),
    "loader": Fault("rank 2's data set hangs", ("absent",)),
    "worker": Fault("rank 2's data loader workers hang", ("absent",)),
    "worker_disk": Fault("rank 2's data loader workers wait in the kernel", ("absent",)),
    "worker_dies": Fault("rank 2's data loader worker is killed", ("gone",), states=("hangs", "died")),
    "save": Fault("rank 2 is stuck in torch.save", ("absent",)),
    "disk": Fault("rank 2 waits in the kernel (state D)", ("absent",)),
    "gil": Fault("rank 2 holds the GIL in C", ("absent",)),
    "spins": Fault("rank 2 is in an endless loop", ("absent",)),
    "stopped": Fault("rank 2 gets SIGSTOP", ("gone",)),
    "exited": Fault("rank 2 exits in the middle", ("gone",), states=("hangs", "died")),
    "raised": Fault("rank 2 raises", ("gone",), states=("hangs", "died")),
    "destroy": Fault("rank 2 destroys its groups, and sleeps", ("absent", "left")),
    "swallowed": Fault("rank 2 swallows an exception and calls a barrier", ("mismatch", "absent")),
    "operation": Fault("rank 2 calls all_gather", ("mismatch",)),
    "order": Fault("ranks 0 and 2 call two groups in another order", ("cycle",), (0, CULPRIT)),
    "send": Fault("rank 2 sends, and rank 0 does not receive", ("no peer", "cycle", "absent"), (0, CULPRIT)),
    "few": Fault("rank 3 never starts", ("init",), (3,), ("unknown",)),
    "gone_store": Fault("the host of the job's store does not answer", ("store",), (0, 1, CULPRIT)),
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
START_S, GIVE_UP_S, PAUSE_S = 120.0, 120.0, 1.0
#: What may be healthy is given less time than usual in a job that is known to hang.
PATIENCE_S = 20
Answer = dict[str, Any]  # JSON


@dataclass(frozen=True)
class Outcome:
    """The verdict on one job."""

    is_right: bool
    seconds: float
    sentence: str
    others: tuple[str, ...] = ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--looks", type=int, default=0, help="look so often at jobs that do not hang, instead")
    parser.add_argument("--others", type=Path, help="ask other tools as well; the folder with pystack and probing")
    args = parser.parse_args()
    if args.looks:
        _look_at_healthy(args.looks)
        return
    rows = []
    for name in args.faults:
        outcomes = [_once(name, args.others if number == 0 else None) for number in range(args.rounds)]
        num_right = sum(outcome.is_right for outcome in outcomes)
        shown = next((outcome for outcome in outcomes if not outcome.is_right), outcomes[0])
        took = f"{median(outcome.seconds for outcome in outcomes):.0f} s"
        rows.append((FAULTS[name].what, f"{num_right} of {args.rounds}", took, shown.sentence, *outcomes[0].others))
        print(name, *rows[-1], sep=" | ", file=sys.stderr, flush=True)
    print(table(("fault", "right", "after", "said", *(OTHERS if args.others else ())), rows))
    print()
    print(provenance())


def _once(name: str, others: Path | None) -> Outcome:
    fault = FAULTS[name]
    with _running(name, with_server=others is not None) as (folder, pids):
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
    return Outcome(is_right and set(verdict["ranks"]) <= set(fault.ranks), took_s, str(verdict["sentence"]), said)


def _look_at_healthy(num_looks: int) -> None:
    """Look at each kind of healthy job, one after the other, until all together were looked at so often."""
    rows = []
    for name, what in HEALTHY.items():
        said: Counter[str] = Counter()
        wrong = ""
        with _running(name) as (_, pids):
            while said.total() < num_looks / len(HEALTHY):
                verdict = _ask(pids, "hang", "--between", "0.5", "--format", "json")["verdict"]
                said[verdict["state"]] += 1
                wrong = verdict["sentence"] if verdict["state"] not in ("no hang", "slow") else wrong
        rows.append((what, str(said.total()), ", ".join(f"{state}: {num}" for state, num in said.items()), wrong))
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    print(table(("job", "looks", "said", "wrong"), rows))
    print()
    print(provenance())


@contextmanager
def _running(name: str, *, with_server: bool = False) -> Iterator[tuple[Path, list[int]]]:
    """Run a job, with recorders in its ranks, until this is left."""
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
            _ask(pids, "ranks", "--format", "json")  # attaches
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
