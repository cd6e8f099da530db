"""Cost of the recorder for a job on a GPU, and duration of an attach to it: `python -m benchmarks.gpu`.

The same tables as benchmarks.overhead and benchmarks.attach print for a CPU, for two jobs: a GPT in bf16, which the
device limits, and a small model, which launching kernels limits. A block ends when the device has ended.
"""

from __future__ import annotations

import argparse
import subprocess
from time import monotonic

from benchmarks.attach import Attach, attach_once
from benchmarks.machine import provenance
from benchmarks.overhead import measure, report
from benchmarks.process import Program
from benchmarks.spread import figure, table
from probe_agent.errors import ProbeError

__all__ = ["main"]

PROGRAM = "device_blocks"
#: Model -> steps a block, steps to settle, seconds of a block that is attached to.
SIZES = {"gpt": (40, 4, 2.5), "small": (1_000, 100, 2.5)}
CPU_SIZES = {"gpt": (20, 2, 2.0), "small": (100, 20, 2.0)}


def attaches(options: list[str], num: int, seconds: float, until: float) -> tuple[list[Attach], int]:
    """Return up to `num` attaches to a job, and the number of refusals."""
    done: list[Attach] = []
    refused = 0
    with Program(PROGRAM, *options) as program:
        program.block(seconds=1.0)
        while len(done) < num and (monotonic() < until or not done) and not refused:
            try:
                done.append(attach_once(program, {"seconds": seconds}))
            except (ProbeError, RuntimeError, subprocess.TimeoutExpired) as refusal:
                print(f"{options}: {refusal}")
                refused += 1  # the last one: a block may be under way
    return done, refused


def attach_row(name: str, done: list[Attach], refused: int) -> list[object]:
    """Return the row of one job."""

    def show(what: str, scale: float, digits: int) -> str:
        seen = figure([getattr(one, what) for one in done])
        return f"{seen.median * scale:.{digits}f}, at most {seen.most * scale:.{digits}f}"

    columns = (("attach_s", 1e3, 1), ("stopped_s", 1e6, 0), ("gap_s", 1e3, 1), ("gap_before_s", 1e3, 1))
    ways = ", ".join(sorted({one.how for one in done}))
    return [name, len(done), refused, ways, *(show(*one) for one in (*columns, ("gap_detach_s", 1e3, 1)))]


def device_of(options: list[str]) -> str:
    """Return a line about the device, as torch and nvidia-smi name it."""
    with Program(PROGRAM, *options) as program:
        about = program.about
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, IndexError, subprocess.CalledProcessError):
        driver = "unknown"
    return f"Device: {about['device']}, driver {driver}, torch {about['torch']}, CUDA {about['cuda']}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu to try the command")
    parser.add_argument("--model", choices=tuple(SIZES), action="append", help="models to train; all by default")
    parser.add_argument("--rounds", type=int, default=6, help="blocks per arm; at least ten for a published figure")
    parser.add_argument("--attaches", type=int, default=10, help="attaches per model; 0 for none")
    parser.add_argument("--minutes", type=float, default=3.0, help="begin no round of a model after this time")
    args = parser.parse_args()
    sizes = SIZES if args.device == "cuda" else CPU_SIZES
    models = args.model or list(SIZES)
    rows = []
    for model in models:
        options = ["--model", model, "--device", args.device]
        steps, settle, seconds = sizes[model]
        blocks = measure(options, steps, args.rounds, settle, args.minutes, PROGRAM)
        print(report(" ".join(options), blocks), flush=True)
        print()
        if args.attaches:
            done, refused = attaches(options, args.attaches, seconds, monotonic() + args.minutes * 60)
            if done:
                rows.append(attach_row(" ".join(options), done, refused))
    if rows:
        headings = [
            "program", "attaches", "failed", "way in", "attach() to hello, ms", "thread stopped, µs",
            "longest step, ms", "the same before, ms", "during detach, ms",
        ]  # fmt: skip
        print("Medians and maxima.\n")
        print(table(headings, rows), end="\n\n")
    print(device_of(["--model", "small", "--device", args.device]), end="  \n")
    print(provenance())


if __name__ == "__main__":
    main()
