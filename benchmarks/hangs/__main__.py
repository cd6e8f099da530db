"""Start jobs that hang, or do not, and ask `probe hang` until it decides."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, sleep

from benchmarks.machine import provenance
from benchmarks.spread import table

from .job import CULPRIT, WORLD_SIZE, start

__all__ = ["main"]

#: Every fault: what it does, the causes that are right, and the ranks; the last word of a healthy job is "no hang".
FAULTS: dict[str, tuple[str, tuple[str, ...], tuple[int, ...]]] = {
    "sleep": ("rank 2 sleeps", ("absent",), (CULPRIT,)),
    "lock": ("rank 2 waits for a lock", ("absent",), (CULPRIT,)),
    "pipe": ("rank 2 reads a pipe that is never written", ("absent",), (CULPRIT,)),
    "loader": ("rank 2's data set hangs", ("absent",), (CULPRIT,)),
    "worker": ("rank 2's data loader worker hangs", ("absent",), (CULPRIT,)),
    "gil": ("rank 2 holds the GIL in C", ("absent",), (CULPRIT,)),
    "spins": ("rank 2 is in an endless loop", ("absent",), (CULPRIT,)),
    "stopped": ("rank 2 gets SIGSTOP", ("gone",), (CULPRIT,)),
    "swallowed": ("rank 2 swallows an exception and calls a barrier", ("mismatch", "absent"), (CULPRIT,)),
    "operation": ("rank 2 calls all_gather", ("mismatch",), (CULPRIT,)),
    "order": ("ranks 0 and 2 call two groups in another order", ("cycle",), (0, CULPRIT)),
    "send": ("rank 2 sends, and rank 0 does not receive", ("no peer", "cycle", "absent"), (0, CULPRIT)),
    "none": ("healthy", (), ()),
    "slow": ("rank 2 takes 1.5 s longer a step", (), ()),
}
#: A job may take this long to import torch and to reach the step in which it hangs.
START_S, GIVE_UP_S, PAUSE_S = 120.0, 60.0, 1.0
#: A healthy job is looked at for so long.
WATCH_S = 20.0


@dataclass(frozen=True)
class Outcome:
    """What was said of one job."""

    is_right: bool
    seconds: float
    sentence: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rows = []
    for fault in args.faults:
        outcomes = [_once(fault) for _ in range(args.rounds)]
        num_right = sum(outcome.is_right for outcome in outcomes)
        took = f"{median(outcome.seconds for outcome in outcomes):.0f} s" if FAULTS[fault][1] else "-"
        shown = next((outcome for outcome in outcomes if not outcome.is_right), outcomes[0])
        rows.append((FAULTS[fault][0], f"{num_right} of {args.rounds}", took, shown.sentence))
        print(fault, num_right, "of", args.rounds, shown.sentence, file=sys.stderr, flush=True)
    print(table(("fault", "right", "after", "said"), rows))
    print()
    print(provenance())


def _once(fault: str) -> Outcome:
    _, causes, ranks = FAULTS[fault]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = start(folder, fault)
        try:
            _wait_for_ranks(folder)
            pids = [int((folder / f"rank_{rank}").read_text()) for rank in range(WORLD_SIZE)]
            _ask(pids, "ranks")  # attaches
            began = monotonic()
            while True:
                verdict = _ask(pids, "hang", "--format", "json")
                took = monotonic() - began
                if verdict["state"] == "hangs" or took > (GIVE_UP_S if causes else WATCH_S):
                    break
                sleep(PAUSE_S)
        finally:
            for process in processes:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
    said = str(verdict["sentence"])
    if not causes:
        return Outcome(verdict["state"] != "hangs", took, said)
    is_right = verdict["state"] == "hangs" and verdict["cause"] in causes and set(verdict["ranks"]) <= set(ranks)
    return Outcome(is_right and bool(verdict["ranks"]), took, said)


def _wait_for_ranks(folder: Path) -> None:
    deadline = monotonic() + START_S
    while not all((folder / f"trains_{rank}").exists() for rank in range(WORLD_SIZE)):
        if monotonic() > deadline:
            raise TimeoutError(f"the job in {folder} has not begun within {START_S:.0f} s")
        sleep(0.1)


def _ask(pids: Sequence[int], *command: str) -> dict[str, object]:
    named = [word for pid in pids for word in ("-t", str(pid))]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("probe")), *named, *command], capture_output=True, text=True
    )
    if command[0] != "hang":
        return {}
    if not done.stdout:
        raise RuntimeError(done.stderr)
    verdict: dict[str, object] = json.loads(done.stdout)["verdict"]
    return verdict


if __name__ == "__main__":
    main()
