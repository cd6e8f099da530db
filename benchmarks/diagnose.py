"""Run the jobs of tests/faults, each with its fault and without, and ask `probe diagnose` of each.

Every program runs in processes of its own; some run at once. The recorder comes to the running program, as users'
commands bring it. Asked is as soon as steps are recorded, and again until the expected rule is the headline or the
evidence is as old as `--seconds`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT, provenance
from benchmarks.spread import table

__all__ = ["main"]

PROBE = str(Path(sys.executable).with_name("probe"))
PAUSE_S, ATTACH_S = 2.0, 60.0


@dataclass(frozen=True)
class Outcome:
    """The headline and the rules below it or beside it, and how old the evidence was."""

    headline: str
    others: tuple[str, ...]
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--at-once", type=int, default=2)
    args = parser.parse_args()
    listed = _listed()
    names = args.only or list(listed)
    with ThreadPoolExecutor(args.at_once) as pool:
        faulty = list(pool.map(lambda name: _run(name, listed[name], False, args.seconds), names))
        healthy = list(pool.map(lambda name: _run(name, listed[name], True, args.seconds), names))
    rows = []
    for name, wrong, twin in zip(names, faulty, healthy, strict=True):
        expected = listed[name]["rule"]
        said = "headline" if wrong.headline == expected else "below" if expected in wrong.others else "missed"
        alarms = ", ".join(filter(None, (twin.headline, *twin.others))) or "-"
        rows.append((name.replace("-", " "), expected, said, wrong.headline or "-", f"{wrong.seconds:.0f} s", alarms))
    print(table(("fault", "rule", "found as", "headline", "after", "said of the twin"), rows))
    print(f"\n{sum(row[2] == 'headline' for row in rows)} of {len(rows)} faults are the headline;"
          f" {sum(row[5] != '-' for row in rows)} of {len(rows)} twins have a finding.\n")  # fmt: skip
    print(provenance())


def _listed() -> dict[str, dict[str, Any]]:
    code = (
        "import json, faults.__main__ as m; "
        "print(json.dumps({name: {'rule': f.rule, 'environ': f.environ} for name, f in m.FAULTS.items()}))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=_environ({}), stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def _environ(more: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1", **more}


def _run(name: str, about: dict[str, Any], healthy: bool, seconds: float) -> Outcome:
    command = [sys.executable, "-m", "faults", name, *["healthy"] * healthy]
    environ = _environ({} if healthy else about["environ"])
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as process:
        try:
            _ask(process.pid, "inject")
            while _ask(process.pid, "query", "--format", "json", "FROM python.steps LIMIT 1") in ("", "[]\n", "[\n]\n"):
                if process.poll() is not None:
                    raise RuntimeError(f"{name} has ended with {process.returncode}")
                time.sleep(0.5)
            began = time.monotonic()
            while True:
                said = json.loads(_ask(process.pid, "diagnose", "--format", "json"))
                took = time.monotonic() - began
                rules = [finding["rule"] for finding in said["findings"]]
                if took > seconds or (not healthy and rules[:1] == [about["rule"]]):
                    break
                time.sleep(PAUSE_S)
        finally:
            process.kill()
    below = [each["rule"] for finding in said["findings"] for each in finding["explains"]]
    outcome = Outcome(rules[0] if rules else "", (*rules[1:], *below), took)
    print(name, "healthy" if healthy else "faulty", outcome, file=sys.stderr, flush=True)
    return outcome


def _ask(pid: int, *words: str) -> str:
    return subprocess.run(
        [PROBE, str(pid), *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout


if __name__ == "__main__":
    main()
