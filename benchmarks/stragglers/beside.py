"""NVRx's straggler scores and TraceML's verdict beside ours: `python -m benchmarks.stragglers.beside`.

One DDP job for each fault (programs/straggling/watched.py), started by `traceml run`, with TraceML's step boundaries in
its loop and its sections timed for NVRx; Probe records it from the start and is queried after the steps. Both
tools come from PyPI into a folder of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic, sleep

import numpy as np

from benchmarks.machine import provenance
from benchmarks.process import plain_environment
from benchmarks.spread import table

from .job import PROGRAM
from .scoring import ask

__all__ = ["TRACEML", "install_tools", "main"]

NVRX, TRACEML = "0.4.1", "0.5.0"
PACKAGES = (f"nvidia-resiliency-ext=={NVRX}", f"traceml-ai=={TRACEML}", "msgspec", "rich", "psutil")
FAULTS = ("nobody", "data", "forward", "backward", "optimizer", "checkpoint")
NUM_RANKS = 4
#: The fault begins here.
BEGIN = 40
#: Flight Recorder's rows come so late.
LATE_S = 17.0
JOB_S = 400.0
#: Until every rank has read that it is to end.
MORE_STEPS = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--rank", type=int, default=2, help="the slow ranks")
    parser.add_argument("--seconds", type=float, default=0.015, help="extra time per step, on average")
    parser.add_argument("--steps", type=int, default=150)
    args = parser.parse_args()
    tools = install_tools()
    rows = []
    for fault in args.faults:
        with tempfile.TemporaryDirectory() as folder:
            rows.append([fault, *_told(fault, Path(folder), tools, args)])
            print(*rows[-1], sep="\n  ", file=sys.stderr)
    print(table([f"rank {args.rank} is slow in", "Probe", f"NVRx {NVRX}", f"TraceML {TRACEML}"], rows))
    print()
    print(provenance())


def install_tools() -> Path:
    """Return the folder with both tools, made in the temporary folder if missing."""
    folder = Path(tempfile.gettempdir()) / f"benchmarks-stragglers-{os.getuid()}"
    if not (folder / "complete").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *PACKAGES]
        subprocess.run(command, check=True, stdout=sys.stderr)
        (folder / "complete").touch()
    return folder


def _told(fault: str, folder: Path, tools: Path, args: argparse.Namespace) -> tuple[str, str, str]:
    """Ask each tool about one job."""
    every = 10 if fault == "checkpoint" else 1
    plan = {"what": fault, "ranks": [args.rank], "seconds": args.seconds * every, "every": every, "block": 0}
    plan |= {"from": BEGIN}
    (folder / "plan").write_text(json.dumps(plan))
    command = [sys.executable, "-m", "traceml_ai.launcher.cli", "run", "--nproc-per-node", str(NUM_RANKS)]
    command += ["--logs-dir", str(folder / "logs"), "--run-name", "run", str(PROGRAM), "--args", str(folder), "watched"]
    environment = {**plain_environment(), "PYTHONPATH": str(tools), "GLOO_SOCKET_IFNAME": "lo"}
    with (folder / "output").open("wb") as output:
        job = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
        try:
            _until_step(BEGIN + args.steps, folder, job)
            sleep(LATE_S)
            ours = ask([(folder / f"pid-{rank}").read_text() for rank in range(NUM_RANKS)], args.steps)
            (folder / "stop").touch()
            (folder / "plan.new").write_text(json.dumps({**plan, "until": _steps_done(folder) + MORE_STEPS}))
            (folder / "plan.new").rename(folder / "plan")
            job.wait(JOB_S)
        finally:
            job.terminate()
    scores = json.loads((folder / "nvrx.json").read_text())
    summary = json.loads((folder / "logs" / "run" / "final_summary.json").read_text())
    diagnosis = summary["primary_diagnosis"]
    theirs = ", ".join(f"{section}: {_ranks(ranks)}" for section, ranks in scores["named"].items()) or "nobody"
    return str(ours.verdict["sentence"]), theirs, f"{diagnosis['status']}: {diagnosis['summary']}"


def _until_step(until: int, folder: Path, job: subprocess.Popen[bytes]) -> None:
    deadline = monotonic() + JOB_S
    while True:
        if all((folder / f"clock-{rank}").exists() for rank in range(NUM_RANKS)) and _steps_done(folder) >= until:
            return
        if monotonic() > deadline or job.poll() is not None:
            raise RuntimeError((folder / "output").read_text()[-5_000:])
        sleep(0.2)


def _steps_done(folder: Path) -> int:
    clocks = [np.memmap(folder / f"clock-{rank}", dtype="<f8", mode="r") for rank in range(NUM_RANKS)]
    return max(int(np.searchsorted(clock[::2] == 0, True)) for clock in clocks)


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


if __name__ == "__main__":
    main()
