"""Verdicts of `probe fr-trace` and of torch's own analyzer about the same dumps: `python -m benchmarks.fr_trace`.

The dumps are those of tests/targets/hanging_ranks.py: jobs of four gloo ranks in a grid of 2 x 2, each with a fault,
and one that is healthy. Both are asked with all dumps, and with that of an innocent rank missing. torch's analyzer
cannot read what gloo writes (a KeyError: it has no list of groups), so it gets the same dumps in the form of NCCL's,
with that list. Takes half a minute.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .agent import PROBE
from .machine import ROOT, provenance
from .process import plain_environment
from .spread import table

__all__ = ["main"]

#: Each job of the program, and what is wrong in it.
FAULTS = {
    "absent": "rank 3 sleeps before its last all_reduce",
    "operation": "rank 2 broadcasts where the others reduce",
    "order": "ranks 0 and 3 take two groups in the other order",
    "healthy": "nothing: all have ended",
}
#: An innocent rank of all jobs.
MISSING = 1
NUM_RANKS, START_S = 4, 120.0
#: The program's groups, by torch's names for them.
GROUPS = {"0": [0, 1, 2, 3], "1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
MAX_TEXT = 300
VERDICT = re.compile("missing|mismatch|incorrect|not match|did not|cannot decide|fail|error", re.IGNORECASE)


@contextmanager
def _dumps() -> Iterator[Path]:
    """A folder with a folder of dumps for each job, once all its ranks have halted."""
    with tempfile.TemporaryDirectory() as base:
        command = [sys.executable, str(ROOT / "tests/targets/hanging_ranks.py"), base, *FAULTS]
        job = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=plain_environment(), start_new_session=True)
        try:
            ends = time.monotonic() + START_S
            while not all(_is_complete(Path(base) / fault, rank) for fault in FAULTS for rank in range(NUM_RANKS)):
                if time.monotonic() > ends or job.poll() is not None:
                    raise RuntimeError(f"the jobs have not halted within {START_S:g} s")
                time.sleep(0.5)
            yield Path(base)
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def _is_complete(folder: Path, rank: int) -> bool:
    """Return whether the dump was written after the last call of its rank."""
    path = folder / f"nccl_trace_rank_{rank}"
    entries = pickle.loads(path.read_bytes())["entries"] if path.exists() else []
    return bool(entries) and path.stat().st_mtime > entries[-1]["time_created_ns"] * 1e-9 + 2


def _said(command: list[str]) -> tuple[str, float]:
    """Return the text that a command printed, in a line, and the seconds it took."""
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=plain_environment(), cwd=ROOT)
    took = time.perf_counter() - began
    return "; ".join(line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()), took


def _ours(folder: Path) -> tuple[str, float]:
    said, took = _said([PROBE, "fr-trace", str(folder)])
    return said[:MAX_TEXT], took


def _torchs(folder: Path) -> tuple[str, float]:
    with tempfile.TemporaryDirectory() as own:
        dumps = list(folder.glob("nccl_trace_rank_?"))
        for dump in dumps:
            Path(own, dump.name).write_bytes(_as_of_nccl(dump))
        analyzer = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", own]
        incomplete = [] if len(dumps) == NUM_RANKS else ["--allow-incomplete-ranks"]
        said, took = _said([*analyzer, "--prefix", "nccl_trace_rank_", *incomplete])
    # The stacks of all ranks are around it.
    verdict = dict.fromkeys(line for line in said.split("; ") if VERDICT.search(line))
    return "; ".join(verdict)[:MAX_TEXT] or "nothing", took


def _as_of_nccl(dump: Path) -> bytes:
    content = pickle.loads(dump.read_bytes())
    rank = int(dump.name[-1])
    named = {entry["process_group"][0]: entry["process_group"][1] for entry in content["entries"]}
    content["pg_config"] = {
        name: {"name": name, "desc": named.get(name, name), "ranks": str(ranks)}
        for name, ranks in GROUPS.items()
        if rank in ranks
    }
    for entry in content["entries"]:
        entry["profiling_name"] = entry["profiling_name"].replace("gloo:", "nccl:")
    return pickle.dumps(content)


def main() -> None:
    rows = []
    with _dumps() as base:
        for fault, about in FAULTS.items():
            for missing in (None, MISSING):
                if missing is not None:
                    (base / fault / f"nccl_trace_rank_{missing}").unlink()
                (ours, our_s), (torchs, torch_s) = _ours(base / fault), _torchs(base / fault)
                shown = about if missing is None else f"the same, without the dump of rank {missing}"
                rows.append([shown, ours, torchs.replace("|", "/"), f"{our_s:.1f}, {torch_s:.1f}"])
    headings = ["what is wrong", "`probe fr-trace`", "torch's analyzer", "s"]
    print(table(headings, rows, align=lambda at: at == len(headings) - 1))
    print(f"\n{provenance()}")


if __name__ == "__main__":
    main()
