"""Is the slow rank named, and nobody else? `python -m benchmarks.stragglers`.

Each round is a gloo job of its own, of DDP or FSDP (tests/targets/straggling.py), started by torchrun, with default
settings. While it runs, one rank after another is made slow by a loader that sleeps, a sleep in forward, a pause
after the optimizer (a checkpoint) or a pause while gradients are made, and in between nobody; in shuffled order, the
rank drawn by chance. After so many steps of each, `probe compare` is asked, as users have it: which rank does it
name, and which phase?
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import monotonic, sleep

from probe_agent.sql import newest_step
from probe_agent.target import TargetDirectory

from .agent import PROBE
from .machine import ROOT, provenance
from .process import plain_environment
from .spread import table

__all__ = ["main"]

#: What is made slow -> the phase that is right.
CASES = {"nobody": "", "data": "data_wait", "forward": "forward", "checkpoint": "other", "backward": "backward"}
#: Until every rank has read what is to be slow.
SETTLE_S = 0.5
START_S = 180.0


class Job:
    """One running job."""

    def __init__(self, folder: Path, num_ranks: int, kind: str) -> None:
        self.folder = folder
        self.case("nobody")
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={num_ranks}"]
        command += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
        command += [str(ROOT / "tests" / "targets" / "straggling.py"), str(folder), kind]
        self._output = (folder / "output").open("wb")
        self._process = subprocess.Popen(command, stdout=self._output, stderr=self._output, env=plain_environment())
        deadline = monotonic() + START_S
        ready = [folder / f"ready-{rank}" for rank in range(num_ranks)]
        while not all(path.exists() for path in ready):
            if monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError((folder / "output").read_text())
            sleep(0.1)
        self.pids = [int(path.read_text()) for path in ready]

    def case(self, text: str) -> None:
        (self.folder / "case.new").write_text(text)
        (self.folder / "case.new").rename(self.folder / "case")

    def steps_done(self) -> int:
        """The fewest that a rank has taken."""
        newest = [newest_step(target) for target in TargetDirectory().targets() if target.pid in self.pids]
        return min((step[0] for step in newest if step is not None), default=0) if len(newest) == len(self.pids) else 0

    def verdict(self, num_steps: int) -> dict[str, object]:
        command = [PROBE, *(word for pid in self.pids for word in ("-t", str(pid)))]
        command += ["compare", "--steps", str(num_steps), "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True, env=plain_environment(), timeout=60)
        if not done.stdout:
            raise RuntimeError(done.stderr)
        found: dict[str, object] = json.loads(done.stdout)["verdict"]
        return found

    def end(self) -> None:
        (self.folder / "stop").touch()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait(30)
        self._output.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="jobs")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--kind", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--steps", type=int, default=100, help="steps of each case")
    parser.add_argument("--slow", type=float, default=0.02, help="seconds that the slow rank sleeps in a step")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    counts: dict[str, Counter[str]] = {case: Counter() for case in args.cases}
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            job = Job(Path(folder), args.ranks, args.kind)
            try:
                for case in chance.sample(args.cases, len(args.cases)):
                    one_case(job, case, chance.randrange(args.ranks), args, counts[case])
            finally:
                job.end()
        print(f"round {number + 1}: " + "; ".join(f"{case} {dict(counts[case])}" for case in counts), file=sys.stderr)
    rows: list[list[object]] = [
        [case, found["asked"], found["rank"], found["rank and phase"], found["another rank too"]]
        for case, found in counts.items()
    ]
    print(
        f"Jobs of {args.ranks} ranks ({args.kind}); the slow one sleeps {args.slow * 1e3:g} ms a step; compared are"
        f" {args.steps} steps. Of `nobody`, right is that no rank is named.\n"
    )
    print(table(["slow", "asked", "rank right", "rank and phase right", "another rank named"], rows))
    print()
    print(provenance())


def one_case(job: Job, case: str, rank: int, args: argparse.Namespace, found: Counter[str]) -> None:
    """Make it so, wait for the steps, ask, and count how it went."""
    job.case("nobody" if case == "nobody" else f"{case} {rank} {args.slow}")
    sleep(SETTLE_S)
    enough = job.steps_done() + args.steps + 5
    while job.steps_done() < enough:
        sleep(0.5)
    verdict = job.verdict(args.steps)
    wanted = [] if case == "nobody" else [rank]
    named = verdict["ranks"]
    found["asked"] += 1
    is_right = named == wanted and verdict["state"] == ("stands out" if wanted else "nobody")
    found["rank"] += is_right
    found["rank and phase"] += is_right and (not wanted or verdict["where"] == CASES[case])
    assert isinstance(named, list)
    found["another rank too"] += bool(set(named) - set(wanted))
    if not is_right or (wanted and verdict["where"] != CASES[case]):
        print(f"  {case} {rank}: {verdict['sentence']} (score {verdict['score']:.1f})", file=sys.stderr)


if __name__ == "__main__":
    main()
