"""TraceML's verdict beside that of `probe diagnose` on the programs of tests/faults.

    python -m benchmarks.diagnose_beside

Each program runs under `traceml run` with step boundaries in its loop (programs/traced_fault.py), for `--seconds` of
steps, as long as `probe diagnose` may take; then TraceML makes its summary. What `diagnose` says is taken from the
results of `python -m benchmarks.diagnose`. TraceML comes from PyPI into a folder of its own. As there, each result is a
line of JSON in `--beside`, and what is in it is not run again.

torch's debug server and `probing` give stacks and tables, and no verdict: they are in the table of benchmarks.hangs.
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
from contextlib import suppress
from pathlib import Path
from typing import Any

from .diagnose import Program, programs, read_results
from .machine import ROOT, provenance
from .process import plain_environment
from .spread import table
from .stragglers.beside import TRACEML, install_tools

__all__ = ["main"]

PROGRAM = ROOT / "benchmarks" / "programs" / "traced_fault.py"
#: What a start and a summary may take beside the steps.
MORE_S = 150.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("diagnose.jsonl"), help="of benchmarks.diagnose")
    parser.add_argument("--beside", type=Path, default=Path("diagnose_beside.jsonl"))
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="names, or beginnings of names")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--minutes", type=float, default=1e9, help="start no program after this")
    args = parser.parse_args()
    ends = time.monotonic() + 60 * args.minutes
    ours = {one.name: one for one in read_results(args.results) if one.rule}
    faulty = {one.name: one for one in programs() if one.rule}
    theirs = _read(args.beside)
    tools = install_tools()
    for name in ours:
        if name in theirs or time.monotonic() > ends or (args.only and not name.startswith(tuple(args.only))):
            continue
        said = _said(faulty[name], tools, args.seconds)
        theirs[name] = said
        with args.beside.open("a") as file:
            file.write(json.dumps({"name": name, "said": said}) + "\n")
        print(f"{name}: {said}", file=sys.stderr, flush=True)
    rows = [(name.replace("-", " "), ours[name].sentence or "-", said) for name, said in theirs.items() if name in ours]
    print(table(("fault", "`probe diagnose`", f"TraceML {TRACEML}"), rows))
    print()
    print(provenance())


def _read(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    return {line["name"]: line["said"] for line in map(json.loads, path.read_text().splitlines())}


def _said(program: Program, tools: Path, seconds: float) -> str:
    """Return TraceML's primary diagnosis of one program."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "summary.json")
        command = [sys.executable, "-m", "traceml_ai.launcher.cli", "run", "--nproc-per-node", str(program.num_ranks)]
        command += [
            "--logs-dir",
            folder,
            "--run-name",
            "run",
            str(PROGRAM),
            "--args",
            str(out),
            str(seconds),
            program.name,
        ]
        paths = os.pathsep.join((str(tools), str(ROOT / "tests")))
        environment = {**plain_environment(), "PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        environment |= program.environ
        log = Path(folder, "log")
        with log.open("wb") as output:
            job = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
            try:
                job.wait(seconds + MORE_S)
                end = f"ended with {job.returncode}"
            except subprocess.TimeoutExpired:
                end = "hangs"
            finally:
                with suppress(ProcessLookupError):  # all of it has ended
                    os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        if not out.exists():
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            return f"no summary: the job {end}" + (f" ({last[0][:100]})" if last and end != "hangs" else "")
        diagnosis: dict[str, Any] = json.loads(out.read_text())["primary_diagnosis"]
        return f"{diagnosis['status']}: {diagnosis['summary']}"


if __name__ == "__main__":
    main()
