"""Run the jobs of tests/faults, each with its fault and without, and ask `probe diagnose` of each.

Every program runs in processes of its own, and the recorder comes to the running program, as users' commands bring it.
A faulty one is asked until the expected rule is the headline or the evidence is as old as `--seconds`; a healthy one
after 12, 21 and 30 s, and then every 30 s until that time. Healthy are the twins, and programs of
tests/integration/programs/kinds as long runs.

A run of all takes hours on two cores, so each result is appended to a file of JSON lines, and what is in it is not run
again: `--minutes` ends after a while, and the same command goes on from there. `--table` makes the table of what there
is.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT, provenance
from benchmarks.spread import table

__all__ = ["Program", "Result", "main", "programs", "read_results"]

PROBE = str(Path(sys.executable).with_name("probe"))
LOCK = threading.Lock()
PAUSE_S, START_S = 4.0, 60.0
#: A healthy program is asked when the evidence is so old, and from then on once in every so many seconds as the last.
ASKED_AT_S = (12.0, 21.0, 30.0)
#: What only says that the host is busy is true of a host whose tasks waited for a CPU so much of the time.
OF_THE_HOST, BUSY = frozenset({"processor-contended", "host-busy"}), 20.0


@dataclass(frozen=True)
class Program:
    """A program, its ranks, and the rule that is to be the headline; empty for a healthy one."""

    name: str
    command: tuple[str, ...]
    rule: str
    environ: dict[str, str]
    num_ranks: int
    begins_s: float


@dataclass(frozen=True)
class Result:
    """The answer to one run. `seconds` is the age of the evidence when it was said, `pressure` the part of the time
    in which some task of the host waited for a CPU, in percent."""

    name: str
    rule: str
    run: int
    num_ranks: int
    headline: str
    sentence: str
    #: Rules shown beside the headline, below it, and in any answer, each with its first sentence.
    beside: tuple[str, ...]
    below: tuple[str, ...]
    ever: dict[str, str]
    seconds: float
    #: The highest at any answer.
    pressure: float
    commit: str

    @property
    def found_as(self) -> str:
        if self.headline == self.rule:
            return "headline"
        return "second" if self.rule in (*self.beside, *self.below) else "missed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="names, or beginnings of names")
    parser.add_argument("--healthy", choices=("yes", "no", "only"), default="yes")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=1, help="of each program")
    parser.add_argument("--at-once", type=int, default=2, help="programs that run beside each other")
    parser.add_argument("--minutes", type=float, default=1e9, help="start no program after this")
    parser.add_argument("--results", type=Path, default=Path("diagnose.jsonl"))
    parser.add_argument("--table", action="store_true", help="run nothing, print the table of the results")
    args = parser.parse_args()
    if args.table:
        print(_table(read_results(args.results)))
        return
    ends = time.monotonic() + 60 * args.minutes
    wanted: list[tuple[Program, int]] = []
    done = {(one.name, one.rule == "", one.run) for one in read_results(args.results)}
    for run in range(args.runs):
        for program in programs():
            is_healthy = program.rule == ""
            if (args.healthy == "no" and is_healthy) or (args.healthy == "only" and not is_healthy):
                continue
            if args.only and not program.name.startswith(tuple(args.only)):
                continue
            if (program.name, is_healthy, run) not in done:
                wanted.append((program, run))

    def one(chosen: tuple[Program, int]) -> None:
        if time.monotonic() > ends:
            return
        try:
            result = _run(*chosen, args.seconds)
        except RuntimeError as failure:  # it costs this program only, which is run when the command is given again
            print(chosen[0].name, failure, file=sys.stderr, flush=True)
            return
        with LOCK, args.results.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        print(_line(result), file=sys.stderr, flush=True)

    with ThreadPoolExecutor(args.at_once) as pool:
        list(pool.map(one, wanted))
    print(_table(read_results(args.results)))


def programs() -> list[Program]:
    """Return all of tests/faults, each with its twin, and the other healthy ones."""
    code = (
        "import json, faults.__main__ as m, faults.kinds as k; from dataclasses import asdict; "
        "print(json.dumps([{name: {'rule': f.rule, 'environ': f.environ, 'ranks': f.num_ranks, 'begins': f.begins_s} "
        "for name, f in m.FAULTS.items()}, k.NAMES]))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=_environ({}), stdout=subprocess.PIPE, text=True, check=True)
    faults, kinds = json.loads(done.stdout)
    listed: list[Program] = []
    for name, about in faults.items():
        command = (sys.executable, "-m", "faults", name)
        listed.append(Program(name, command, about["rule"], about["environ"], about["ranks"], about["begins"]))
        listed.append(Program(name, (*command, "healthy"), "", {}, about["ranks"], 0.0))
    for name, num_ranks in kinds.items():
        command = (sys.executable, "-m", "faults.kinds", name)
        if num_ranks > 1:
            command = (sys.executable, "-m", "faults.ranks", str(num_ranks), *command)
        listed.append(Program(f"kinds/{name}", command, "", {}, num_ranks, 0.0))
    return listed


def _run(program: Program, run: int, seconds: float) -> Result:
    environ = _environ(program.environ)
    launched = subprocess.Popen(
        program.command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        pids = _ranks(launched, program.num_ranks)
        for pid in pids:
            _ask(pid, "inject")
        _wait_for_a_step(pids[0])
        began = time.monotonic() + program.begins_s
        ever: dict[str, str] = {}
        pressure = 0.0
        said: dict[str, Any] | None = None
        for at in _until_found(seconds) if program.rule else _regularly(seconds):
            time.sleep(max(0.0, began + at - time.monotonic()))
            said = _diagnosis(pids, program.num_ranks) or said
            pressure = max(pressure, _pressure())
            took = time.monotonic() - began
            if said is None:
                if took > seconds:
                    break
                continue
            rules = [finding["rule"] for finding in said["findings"]]
            ever = {finding["rule"]: finding["sentence"] for finding in said["findings"]} | ever
            if took > seconds or (program.rule and rules[:1] == [program.rule]):
                break
    finally:
        os.killpg(launched.pid, signal.SIGKILL)
        launched.wait()
    if said is None:
        raise RuntimeError("diagnose has not answered: no verdict is no miss")
    below = [each["rule"] for finding in said["findings"] for each in finding["explains"]]
    sentence = said["findings"][0]["sentence"] if said["findings"] else ""
    return Result(
        program.name, program.rule, run, program.num_ranks, rules[0] if rules else "", sentence, tuple(rules[1:]),
        tuple(below), ever, round(took, 1), pressure, _commit(),
    )  # fmt: skip


def _until_found(seconds: float) -> Iterable[float]:
    at = 1.0
    while at <= seconds + PAUSE_S:
        yield at
        at += PAUSE_S


def _regularly(seconds: float) -> Iterable[float]:
    yield from (at for at in ASKED_AT_S if at < seconds)
    at = ASKED_AT_S[-1]
    while (at := at + ASKED_AT_S[-1]) < seconds:
        yield at
    yield seconds


def _ranks(launched: subprocess.Popen[bytes], num_ranks: int) -> list[int]:
    """The processes of the job: what was launched, or its children."""
    if num_ranks == 1:
        return [launched.pid]
    children = Path(f"/proc/{launched.pid}/task/{launched.pid}/children")
    ends = time.monotonic() + START_S
    while len(pids := children.read_text().split()) < num_ranks:
        if time.monotonic() > ends:
            raise RuntimeError(f"{len(pids)} of {num_ranks} ranks have started")
        time.sleep(0.2)
    return [int(pid) for pid in pids[:num_ranks]]


def _wait_for_a_step(pid: int) -> None:
    """Until a step is recorded; not for ever, since some programs have none."""
    ends = time.monotonic() + START_S / 2
    while time.monotonic() < ends:
        said = _ask(pid, "query", "--format", "json", "SELECT 1 FROM python.steps LIMIT 1")
        if "1" in said:
            return
        time.sleep(0.5)


def _diagnosis(pids: Sequence[int], num_ranks: int) -> dict[str, Any] | None:
    """Return the answer of diagnose; None where it gives none."""
    words = ("diagnose", "--format", "json")
    said = _probe("-t", str(pids[0]), "--all", *words) if num_ranks > 1 else _ask(pids[0], *words)
    told: dict[str, Any] | None = json.loads(said) if said else None
    return told


def _table(results: Sequence[Result]) -> str:
    faulty = [one for one in results if one.rule]
    healthy = [one for one in results if not one.rule]
    alarms = Counter(rule for one in healthy for rule in one.ever if not _is_true_of_the_host(one, rule))
    busy = sum(_is_true_of_the_host(one, rule) for one in healthy for rule in one.ever)
    rows = []
    for name in dict.fromkeys(one.name for one in faulty):
        runs = [one for one in faulty if one.name == name]
        twins = [one for one in healthy if one.name == name]
        found = Counter(one.found_as for one in runs)
        when = sorted(one.seconds for one in runs if one.found_as == "headline")
        said = Counter(rule for one in twins for rule in one.ever)
        rows.append(
            (
                name.replace("-", " "),
                runs[0].rule,
                *(found[kind] or "" for kind in ("headline", "second", "missed")),
                f"{when[len(when) // 2]:.0f} s" if when else "",
                ", ".join(sorted(said)) or ("-" if twins else "not run"),
            )
        )
    hours = sum(one.seconds * one.num_ranks for one in healthy) / 3600
    found = Counter(one.found_as for one in faulty)
    kinds = len({one.name for one in healthy})
    head = ("fault", "rule", "headline", "second", "missed", "after", "said of the twin")
    told = ", ".join(f"{rule} {times}" for rule, times in alarms.most_common()) or "none"
    return "\n".join(
        (
            table(head, rows),
            "",
            f"{found['headline']} of {len(faulty)} runs with a fault have it as the headline, {found['second']}"
            f" in second place or below another finding, {found['missed']} not. {len(healthy)} runs of {kinds} healthy"
            f" programs, {hours:.2f} rank-hours: {sum(alarms.values())} false alarms ({told});"
            f" {busy} times it was said that the host is busy, when it was.",
            "",
            f"Commits measured: {', '.join(sorted({one.commit for one in results}))}.  ",
            provenance(),
        )
    )


def _is_true_of_the_host(result: Result, rule: str) -> bool:
    return rule in OF_THE_HOST and result.pressure >= BUSY


def _line(result: Result) -> str:
    took = f"after {result.seconds:.0f} s"
    if result.rule:
        others = ", ".join((*result.beside, *result.below))
        found = f"{result.headline or '-'} [{others}] {result.sentence}"
        return f"{result.name} {result.rule}: {result.found_as} {took}: {found}"
    alarms = [f"{rule}: {said}" for rule, said in result.ever.items() if not _is_true_of_the_host(result, rule)]
    return f"{result.name} healthy {took}: {'; '.join(alarms) or '-'}"


def read_results(path: Path) -> list[Result]:
    """Return the lines of a file that a run has written."""
    if not path.exists():
        return []
    lists = ("beside", "below")
    return [
        Result(**{name: tuple(value) if name in lists else value for name, value in json.loads(line).items()})
        for line in path.read_text().splitlines()
    ]


def _pressure() -> float:
    """The last 10 s of /proc/pressure/cpu; without it, by how much the load exceeds the cores."""
    try:
        words = Path("/proc/pressure/cpu").read_text().split()
        return float(words[1].partition("=")[2])
    except OSError:
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        return max(0.0, 100 * (1 - cores / load)) if load else 0.0


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty=+"]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def _environ(more: dict[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1", **more}


def _ask(pid: int, *words: str) -> str:
    return _probe(str(pid), *words)


def _probe(*words: str) -> str:
    done = subprocess.run([PROBE, *words], capture_output=True, text=True)
    if "diagnose" in words and not done.stdout:
        print(done.stderr[-2000:], file=sys.stderr, flush=True)
    return done.stdout


if __name__ == "__main__":
    main()
