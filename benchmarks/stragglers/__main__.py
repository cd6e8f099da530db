"""Run jobs, slow ranks down and run `probe compare`, or run it on the recorded rows of such jobs."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.machine import provenance

from .cases import KINDS, SHARES, Case, matrix
from .job import Job, Truth, hog
from .recording import record, recorded, restored, truth_of
from .scoring import Answer, Score, ask

__all__ = ["main"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--faults", nargs="+", help="only these, such as data or forward=0.2,0.45 (shares)")
    parser.add_argument("--ranks", nargs="+", type=int, help="the slow ranks, instead of a random one")
    parser.add_argument("--shares", nargs="+", type=float, default=list(SHARES), help="of the job's time")
    parser.add_argument("--healthy", type=int, default=3, help="healthy windows in each job")
    parser.add_argument("--hosts", type=int, default=1, help="names of hosts that the ranks are given")
    parser.add_argument("--beside", choices=list(KINDS), help="a second job on the host, of this kind")
    parser.add_argument("--hogs", type=int, default=0, help="processes beside the job that use any core all the time")
    parser.add_argument("--steps", type=int, default=200, help="steps of each case that are compared")
    parser.add_argument("--cases", type=int, help="number of faulty cases in each job, drawn at random")
    parser.add_argument("--nice", type=int, default=0, help="of the ranks, also among sessions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="keep the rows of each case, and evaluate them")
    parser.add_argument("--replay", type=Path, metavar="FOLDER", help="evaluate the recorded rows; run no job")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="with --replay: cases with such names")
    parser.add_argument("--no-ask", action="store_true", help="with --record: only record")
    args = parser.parse_args()
    score = Score()
    if args.replay:
        for folder in recorded(args.replay):
            if folder.match(args.only):
                _replay(folder, score)
    else:
        chance = random.Random(args.seed)
        for kind in args.kinds:
            _run(kind, _cases(kind, chance, args), args, score)
    print(score.report())
    print()
    print(provenance())


def _cases(kind: str, chance: random.Random, args: argparse.Namespace) -> list[Case]:
    cases = matrix(kind, chance, args.shares, args.healthy)
    if args.cases is not None:
        left = args.cases
        cases = [case for case in cases if case.what == "nobody" or (left := left - 1) >= 0]
    if args.faults:
        cases = [case for case in cases if case.what in args.faults]
    if args.ranks:
        cases = [Case(case.what, tuple(args.ranks), case.share) if case.ranks else case for case in cases]
    return cases


def _run(kind: str, cases: list[Case], args: argparse.Namespace, score: Score) -> None:
    """Run one job with these cases one after the other."""
    with ExitStack() as stack:
        beside = ", ".join([args.beside] * bool(args.beside) + [f"{args.hogs} hogs"] * bool(args.hogs))
        job = Job(Path(stack.enter_context(tempfile.TemporaryDirectory())), kind, args.hosts, beside, args.nice)
        stack.callback(job.end)
        if args.beside:
            other = Job(Path(stack.enter_context(tempfile.TemporaryDirectory())), args.beside)
            stack.callback(other.end)
        for _ in range(args.hogs):
            stack.callback(_end, hog(args.nice))
        told: list[tuple[str, Truth]] = []
        for case in cases:
            asked = (lambda: None) if args.record else (lambda: ask([str(pid) for pid in job.pids], args.steps))
            truth, answer = job.run(case, args.steps, asked)
            told.append((case.name(kind), truth))
            print(_line(case.name(kind), truth), file=sys.stderr)
            if isinstance(answer, Answer):
                score.add(case.name(kind), truth, answer)
                print(f"  {answer.verdict['sentence']}", file=sys.stderr)
        if args.record:
            job.rest()
            for folder in record(job, told, args.record):
                if not args.no_ask:
                    _replay(folder, score)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _replay(folder: Path, score: Score) -> None:
    truth = Truth(**truth_of(folder))
    with restored(folder) as endpoints:
        score.add(folder.name, truth, ask(endpoints, truth.num_steps))


def _line(name: str, truth: Truth) -> str:
    return (
        f"{name}: steps of {truth.step_s * 1e3:.1f} ms, planted {max(truth.planted_s) * 1e3:.1f}, cost"
        f" {truth.cost_s * 1e3:.1f} ({truth.cost_low_s * 1e3:.1f} to {truth.cost_high_s * 1e3:.1f}),"
        f" {truth.cost_share:.1%}; load {truth.load:.1f}"
    )


if __name__ == "__main__":
    main()
