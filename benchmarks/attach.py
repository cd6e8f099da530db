"""Duration of an attach, and its effect on the job: `python -m benchmarks.attach`.

Attaches to a training process (and to a plain loop, which detects shorter gaps) while it runs. The longest gap around
an attach is printed beside the longest one in a period of the same length just before it, in the same block: the
effect of the machine itself. Then the same for a user: `probe PID query` on a process without the agent.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic, perf_counter_ns, sleep
from typing import TypeVar

from probe_agent import inject
from probe_agent.errors import ProbeError

from .agent import command, timed_command
from .attach_beside import compare
from .machine import provenance
from .process import Program
from .quiet import wait_until_quiet
from .spread import Figure, figure, table

__all__ = ["main"]

T = TypeVar("T")
#: How long after the answer a gap still counts as the attach's: sources start one after another.
AFTERMATH_NS = 500_000_000
BLOCKS: dict[str, dict[str, float]] = {
    "blocks --model mlp": {"steps": 3_500},
    "blocks --model gpt": {"steps": 32},
    "spin": {"seconds": 2.5},
}


@dataclass(frozen=True)
class Attach:
    """One attach to a running program, and one detach."""

    how: str
    attach_s: float
    stopped_s: float
    gap_s: float  #: longest within the attach and its aftermath
    gap_before_s: float  #: longest in as long a stretch before it
    gap_detach_s: float


def attach_once(program: Program, order: dict[str, float]) -> Attach:
    """Attach in the middle of a block, detach, and look up the gaps that the program recorded."""
    wait_until_quiet()
    program.begin(**order, pieces=1)
    sleep(0.9)
    began = perf_counter_ns()
    attached = inject.attach(program.pid)
    ended = perf_counter_ns()
    sleep(AFTERMATH_NS * 1e-9)
    detach_began = perf_counter_ns()
    command(str(program.pid), "detach")
    detach_ended = perf_counter_ns()
    block = program.end()
    span = ended + AFTERMATH_NS - began
    return Attach(
        attached.how,
        (ended - began) * 1e-9,
        attached.stopped_s,
        block.longest_within_s(began, ended + AFTERMATH_NS),
        block.longest_within_s(began - span, began),
        block.longest_within_s(detach_began, detach_ended),
    )


def first_answer_s(program: Program) -> float:
    """Return the wall time of the whole `probe PID query` process if it has to attach first."""
    wait_until_quiet()
    took = program.while_running(lambda: timed_command(str(program.pid), "query", "SELECT 1"))
    program.while_running(lambda: command(str(program.pid), "detach"))
    return took


def series(name: str, act: Callable[[Program], T], num: int, until: float) -> tuple[list[T], list[str]]:
    """Return the results of up to `num` calls of `act`, and the refusals; after a refusal use a fresh process."""
    given: list[T] = []
    refused: list[str] = []
    while len(given) + len(refused) < num and (monotonic() < until or not given):
        with Program(*name.split()) as program:
            program.block(**BLOCKS[name])
            try:
                while len(given) + len(refused) < num and (monotonic() < until or not given):
                    given.append(act(program))
            except (ProbeError, RuntimeError) as refusal:
                refused.append(str(refusal))
                print(f"{name}: {refusal}", file=sys.stderr)
    return given, refused


def _row(name: str, attaches: list[Attach], first: list[float], num_refused: int) -> list[object]:
    def show(what: str, scale: float, digits: int) -> str:
        seen: Figure = figure([getattr(attach, what) for attach in attaches])
        return f"{seen.median * scale:.{digits}f}, at most {seen.most * scale:.{digits}f}"

    return [
        name,
        len(attaches) + len(first),
        num_refused,
        ", ".join(sorted({attach.how for attach in attaches})),
        show("attach_s", 1e3, 1),
        show("stopped_s", 1e6, 0),
        show("gap_s", 1e3, 1),
        show("gap_before_s", 1e3, 1),
        show("gap_detach_s", 1e3, 1),
        figure(first).show(1e3, 0) if first else "-",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attaches", type=int, default=30, help="attaches per program")
    parser.add_argument(
        "--first-answers",
        type=int,
        default=10,
        help="`probe PID query` commands to a process without an agent, per program",
    )
    parser.add_argument(
        "--program", choices=tuple(BLOCKS), action="append", help="programs to attach to; all by default"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no attach to a program after this time")
    parser.add_argument("--beside", type=int, default=5, help="attaches per program with every other tool; 0 for none")
    args = parser.parse_args()
    rows = []
    for name in args.program or BLOCKS if args.attaches else ():
        attaches, refused = series(
            name, partial(attach_once, order=BLOCKS[name]), args.attaches, monotonic() + args.minutes * 60
        )
        first, refused_first = series(name, first_answer_s, args.first_answers, monotonic() + args.minutes * 60)
        rows.append(_row(name, attaches, first, len(refused) + len(refused_first)))
    headings = [
        "program", "attaches", "failed", "way in", "attach() to hello, ms", "thread stopped, µs",
        "longest gap or step, ms", "the same before, ms", "during detach, ms", "`probe PID query` with attach, ms",
    ]  # fmt: skip
    if rows:
        print("Medians and maxima; of the last column the median and its 95 % interval.\n")
        print(table(headings, rows), end="\n\n", flush=True)
    if args.beside:
        print("Medians and maxima; every attach in a fresh process. A stop shorter than 0.3 ms may not be seen.\n")
        print(compare(args.beside), end="\n\n")
    print(provenance())


if __name__ == "__main__":
    main()
