"""Jobs that hang, or do not, and what `probe hang` and other tools say of them.

Each outcome is a line of JSON in `--into`. A run that is ended goes on where it was, and the tables are made of all
lines. The second round of a fault attaches before it happens; the first one, and every other, when the job hangs. It is
asked once no step has been made for six seconds, and times are counted from the last step.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

from benchmarks.machine import commit, provenance
from benchmarks.spread import table
from probe_cli.main import run

from .faults import FAULTS, HEALTHY, PLANTED
from .job import CULPRIT, WORLD_SIZE, start
from .others import OTHERS, ask_others, install_others
from .stuck import remove_cgroup

__all__ = ["main"]


#: A job may take this long to import torch and to reach the step in which it hangs.
START_S, GIVE_UP_S, PAUSE_S = 400.0, 120.0, 2.0
#: It goes wrong so many steps after it has begun, or has been attached to.
MORE_STEPS = 100
#: A job hangs if it has made no step for so long.
STILL_S = 6.0
#: What may be healthy is given less time than usual in a job that is known to hang.
PATIENCE_S = 20
#: Looks at one healthy job before the next one is started: enough for two of its long pauses.
LOOKS_A_JOB, BETWEEN_LOOKS_S = 100, 2.0
ALL = FAULTS | PLANTED
PROBE = str(Path(sys.executable).with_name("probe"))
Answer = dict[str, Any]  # JSON
NO_ANSWER: Answer = {"state": "no answer", "cause": "", "ranks": [], "sentence": "no rank could be looked at"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", nargs="*", choices=list(ALL), default=list(ALL))
    parser.add_argument("--healthy", nargs="*", choices=list(HEALTHY), default=list(HEALTHY))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--looks", type=int, default=0, help="looks at jobs that do not hang, all kinds together")
    parser.add_argument(
        "--others", type=Path, help="ask other tools in the first round; environment that they are installed into"
    )
    parser.add_argument("--into", type=Path, default=Path("hangs.jsonl"), help="file of outcomes; it is added to")
    parser.add_argument("--for", dest="seconds", type=float, default=float("inf"), help="start nothing after so long")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the jobs end with it
    if args.others is not None:
        install_others(args.others)
    # A host server of its own: one that serves others of this user may be of another version, or busy.
    runtime = tempfile.TemporaryDirectory(prefix="hangs-", dir="/dev/shm")
    os.environ["PROBE_RUNTIME_DIR"] = runtime.name
    began = monotonic()
    for kind, name, attach in _to_do(args.faults, args.healthy, args.rounds, args.looks, args.into):
        if monotonic() - began > args.seconds:
            break
        with_others = args.others if kind == "fault" and not _lines(args.into, kind, name) else None
        if kind == "healthy":
            outcome = _look_at_healthy(name)
        elif name in PLANTED:
            outcome = _find_planted(name)
        else:
            outcome = _once(name, attach, with_others)
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


def _to_do(
    faults: Sequence[str], healthy: Sequence[str], rounds: int, looks: int, into: Path
) -> Iterator[tuple[str, str, str]]:
    """Iterate over what the file does not hold yet, one round of everything after the other."""
    per_kind = looks / max(len(healthy), 1)
    for number in range(max(rounds, -int(-per_kind // LOOKS_A_JOB))):
        for name in faults if number < rounds else ():
            if len(_lines(into, "fault", name)) <= number:
                attach = FAULTS[name].attach if name in FAULTS else ("before",)
                yield "fault", name, attach[number % len(attach)]
        for name in healthy:
            num_looks = sum(line["looks"] for line in _lines(into, "healthy", name))
            if num_looks < min(per_kind, (number + 1) * LOOKS_A_JOB):
                yield "healthy", name, "before"


def _once(name: str, attach: str, others: Path | None) -> Answer:
    """Run one job until `probe hang` has said who holds it up."""
    fault = FAULTS[name]
    with _running(name, attach, with_server=others is not None) as (folder, pids):
        began = _last_step_at(folder) if name != "few" else time.time()
        while True:
            verdict = _ask(pids, "hang", "--patience", str(PATIENCE_S), "--format", "json")["verdict"]
            took_s = time.time() - began
            if (verdict["state"] in fault.states and verdict["ranks"]) or took_s > GIVE_UP_S:
                break
            sleep(PAUSE_S)
        culprit = pids[min(fault.ranks[-1], len(pids) - 1)]
        said = ask_others(folder, culprit, WORLD_SIZE, others) if others is not None else ()
    told = {key: verdict[key] for key in ("state", "cause", "ranks", "sentence")}
    return {"attach": attach, "seconds": round(took_s, 1), "told": told, "others": list(said)}


def _find_planted(name: str) -> Answer:
    """Run a job that goes on, and ask what goes wrong in it. The hunt for NaN begins before."""
    fault = PLANTED[name]
    with _running(name, "before") as (folder, pids):
        culprit = pids[CULPRIT]
        if fault.asks == "nan":
            command = [PROBE, "-t", str(culprit), "--all", "nan", "--hunt", "--seconds", str(GIVE_UP_S)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as hunting:
                assert hunting.stderr is not None
                next((line for line in hunting.stderr if line.startswith("watching")), None)
                (folder / "plant").touch()
                began = monotonic()
                said, _ = hunting.communicate()
        else:
            began = monotonic()
            pid = _worker_of(culprit) if fault.asks == "worker" else culprit
            command = [PROBE, str(pid), "memory", "--leaks", "--seconds", "10"]
            done = subprocess.run(command, capture_output=True, text=True)
            said = done.stdout or done.stderr
        took_s = monotonic() - began
    sentence = said.partition("\n")[0]
    return {"attach": "before", "seconds": round(took_s, 1), "told": {"sentence": sentence}, "others": []}


def _worker_of(pid: int) -> int:
    sql = "SELECT min(worker_pid) AS pid FROM python.workers"
    done = subprocess.run([PROBE, str(pid), "query", sql, "--format", "json"], capture_output=True, text=True)
    return int(json.loads(done.stdout)[0]["pid"])


def _look_at_healthy(name: str) -> Answer:
    """Look at one healthy job again and again."""
    said: Counter[str] = Counter()
    wrong = []
    with _running(name, "before") as (_, pids):
        while said.total() < LOOKS_A_JOB:
            began = monotonic()
            verdict = _look(pids)
            said[verdict["state"]] += 1
            if verdict["state"] not in ("no hang", "slow", NO_ANSWER["state"]):
                wrong.append(verdict["sentence"])
            sleep(max(0.0, BETWEEN_LOOKS_S - (monotonic() - began)))
    return {"looks": said.total(), "said": dict(said), "wrong": wrong}


def _look(pids: Sequence[int]) -> Answer:
    """Return the verdict of `probe hang`, run in this process: that starts in no time."""
    out = io.StringIO()
    with redirect_stdout(out):
        run([*_named(pids), "hang", "--between", "0.5", "--format", "json"])
    if not out.getvalue():
        return NO_ANSWER
    verdict: Answer = json.loads(out.getvalue())["verdict"]
    return verdict


def _print_tables(into: Path) -> None:
    rows, looks = [], []
    for name, fault in ALL.items():
        lines = _lines(into, "fault", name)
        if lines:
            wrong = [line for line in lines if not fault.is_told(**line["told"])]
            shown = (wrong or lines)[0]
            others = next((line["others"] for line in lines if line["others"]), ["not asked"] * len(OTHERS))
            right = f"{len(lines) - len(wrong)} of {len(lines)}"
            took = {
                attach: [line["seconds"] for line in lines if line["attach"] == attach]
                for attach in ("after", "before")
            }
            times = [f"{median(seconds):.0f} s" if seconds else "" for seconds in took.values()]
            rows.append((fault.what, right, *times, shown["told"]["sentence"].replace("|", "\\|"), *others))
    for name, what in HEALTHY.items():
        lines = _lines(into, "healthy", name)
        if lines:
            said = sum((Counter(line["said"]) for line in lines), Counter[str]())
            said_wrongly = "; ".join(sentence for line in lines for sentence in line["wrong"])
            num_said = ", ".join(f"{state}: {num}" for state, num in said.items())
            looks.append((what, str(said.total()), str(len(lines)), num_said, said_wrongly))
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
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        folder = Path(made)
        processes = start(folder, name, with_server=with_server)
        try:
            num_ranks = WORLD_SIZE - (name == "few")
            _wait_for(folder, [f"{'rank' if name == 'few' else 'trains'}_{rank}" for rank in range(num_ranks)])
            pids = [int((folder / f"rank_{rank}").read_text()) for rank in range(num_ranks)]
            if attach == "before":
                _ask(pids, "ranks", "--format", "json")  # attaches
            if name != "few":
                _decide_last_step(folder)
            if name in FAULTS and name != "few":
                _wait_until_still(folder)
            yield folder, pids
        finally:
            for process in processes:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if name == "cgroup":
                remove_cgroup(int((folder / f"rank_{CULPRIT}").read_text()))


def _wait_for(folder: Path, names: Sequence[str]) -> None:
    deadline = monotonic() + START_S
    while not all((folder / name).exists() for name in names):
        if monotonic() > deadline:
            raise TimeoutError(f"the job in {folder} has not begun within {START_S:.0f} s")
        sleep(0.1)


def _decide_last_step(folder: Path) -> None:
    steps = [int(path.read_text() or 0) for path in folder.glob("trains_*")]
    (folder / "new").write_text(str(max(steps) + MORE_STEPS))
    (folder / "new").rename(folder / "last")


def _wait_until_still(folder: Path) -> None:
    deadline = monotonic() + START_S
    while time.time() - _last_step_at(folder) < STILL_S:
        if monotonic() > deadline:
            raise TimeoutError(f"the job in {folder} goes on")
        sleep(0.5)


def _last_step_at(folder: Path) -> float:
    return max(path.stat().st_mtime for path in folder.glob("trains_*"))


def _named(pids: Sequence[int]) -> list[str]:
    return [word for pid in pids for word in ("-t", str(pid))]


def _ask(pids: Sequence[int], *command: str) -> Answer:
    done = subprocess.run([PROBE, *_named(pids), *command], capture_output=True, text=True)
    if command[0] == "hang" and not done.stdout:
        return {"verdict": NO_ANSWER}
    answer: Answer = json.loads(done.stdout) if command[0] == "hang" else {}
    return answer


if __name__ == "__main__":
    main()
