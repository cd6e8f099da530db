"""Cost of the commands about a large job: `python -m benchmarks.scale`.

The ranks are simulated (simulated.py): rings of 8 ranks a host, and real host servers on loopback addresses, 16 to a
process, which share the machine with the command. So the command's own CPU time, that of all hosts, and the time on the
clock are told apart: real hosts have processors of their own. One rank is late in each TP layer of every step. The
newest step is a while ahead of the clock, or half an hour ago for `hang`: rings of targets that do not run stand still.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from probe_agent.recorder.hooks.collectives import Collectives
from probe_agent.recorder.hooks.modules import TorchTrace
from probe_agent.recorder.ring.table import Table
from probe_agent.recorder.samplers.process import Samples
from probe_agent.recorder.samplers.roles import Groups
from probe_agent.recorder.steps.ends import Steps

from .agent import PROBE
from .delays import job
from .machine import provenance
from .process import plain_environment
from .simulated import SERVERS_A_PROCESS, add_target, addresses_of, serving, tell_peers
from .spread import table

__all__ = ["RANKS_A_HOST", "fill", "main"]

RANKS_A_HOST = 8
NUM_LAYERS, LATE_S = 5, 0.002
AHEAD_S, BEHIND_S = 1_800.0, 1_800.0
SAMPLED_EVERY, NUM_MODULES = 20, 12

COMMANDS: dict[str, Sequence[str]] = {
    "ranks": ("ranks",),
    "compare": ("compare", "--watch", "0"),
    "diagnose": ("diagnose",),
    "hang": ("hang",),
    "query": (
        "query",
        "SELECT rank, count(*), avg(duration), max(duration) FROM python.steps GROUP BY rank ORDER BY rank",
    ),
    "memory": ("memory",),
    "top": ("top", "--count", "1"),
}


def _row(kind: type[Table], **values: object) -> tuple[object, ...]:
    """A row of a table: what is not named is NULL, or the least that its column can hold."""
    least = {"int": 0, "text": None, "bool": False, "time": 0}
    return tuple(values.get(column.name, least.get(column.kind)) for column in kind.columns)


def _ns(seconds: float) -> float:
    """As clocks tell it: a number with fewer digits is shorter on the wire."""
    return round(float(seconds), 9)


def fill(base: Path, addresses: Sequence[str], num_ranks: int, num_steps: int, *, hangs: bool) -> None:
    """Make the rings of a job in groups of TP and DP, 16 hosts to a folder; `addresses` are those of the hosts."""
    slow = num_ranks // 3
    rows = job(num_ranks, min(8, num_ranks), NUM_LAYERS, num_steps, slow, LATE_S)
    newest = max(float(rank.steps["ended"].max()) for rank in rows)
    known, first_of_hosts = [], []
    shift = time.time() + (-BEHIND_S if hangs else AHEAD_S) - newest
    for at, rank in enumerate(rows):
        host = at // RANKS_A_HOST
        where = base / str(host // SERVERS_A_PROCESS) / str(host % SERVERS_A_PROCESS)
        ends = rank.steps["ended"] + shift
        steps = [
            _row(Steps, ts=int(1e6 * end), step=step, duration=_ns(took), data_wait=0.001, forward=_ns(0.4 * took),
                 backward=_ns(0.3 * took), optimizer=0.002, loss=3 / (1 + step / 50), lr=1e-3, rss=900.0,
                 allocated=900.0, micro_batches=1, counted=True, sampled=step % SAMPLED_EVERY == 0)
            for step, (end, took) in enumerate(zip(ends, rank.steps["duration"], strict=True))
        ]  # fmt: skip
        calls = [
            _row(Collectives, ts=int(1e6 * (ended + shift)), start=int(1e6 * (start + shift)), step=int(step),
                 group=str(group), seq=int(seq), op="all_reduce", bytes=1 << 20, dtype="float32", shape="262144",
                 duration=_ns(wait), wait=_ns(wait), phase="forward", wait_phase="forward", state="completed",
                 seen_by="python")
            for step, group, seq, start, ended, wait in zip(
                *(rank.calls[name] for name in ("step", "group", "seq", "start", "ended", "wait")), strict=True
            )
        ]  # fmt: skip
        if hangs and at != slow:  # the others have come to the next call, which that rank has not
            now = int(1e6 * (ends[-1] + 0.01))
            calls.append(_row(Collectives, ts=now, start=now, step=num_steps, group=f"tp{at // 8}",
                              seq=num_steps * NUM_LAYERS, op="all_reduce", bytes=1 << 20, wait=None, state="waiting",
                              phase="forward", seen_by="python"))  # fmt: skip
        modules = [
            _row(TorchTrace, ts=int(1e6 * ends[step]), step=step, seq=number, module=f"layers.{number}", stage=stage,
                 duration=0.001, self_duration=0.0008, device="cpu", phase="train", allocated=900.0)
            for step in range(0, num_steps, SAMPLED_EVERY)
            for number in range(NUM_MODULES)
            for stage in ("forward", "backward")
        ]  # fmt: skip
        first, of = 8 * (at // 8), min(8, num_ranks)
        began = int(1e6 * ends[0])
        groups = [
            _row(Groups, ts=began, group=f"tp{at // 8}", group_desc="mesh_tp", backend="gloo", group_rank=at % 8,
                 size=of, ranks=f"{first}-{first + of - 1}"),
            _row(Groups, ts=began, group=f"dp{at % 8}", group_desc="mesh_dp", backend="gloo", group_rank=at // 8,
                 size=num_ranks // of, ranks=f"{at % 8}-{num_ranks - of + at % 8}:{of}"),
        ]  # fmt: skip
        samples = [_row(Samples, ts=int(1e6 * (ends[-1] - second)), step=num_steps, period=1.0, cpu=0.9, rss=900.0,
                        run_delay=0.0) for second in range(20)]  # fmt: skip
        tables = [(Steps, steps), (Collectives, calls), (TorchTrace, modules), (Groups, groups), (Samples, samples)]
        roles = {"tp": at % 8, "dp": at // 8}
        own = add_target(where, f"host{host}", 1_000_000 + at, at, num_ranks, tables, roles=roles)
        # In this form, because a loopback address that another host names would not be believed.
        ip, _, port = addresses[host].partition(":")
        known.append((f"host{host}", 1_000_000 + at, at, f"[::ffff:{ip}]:{port}"))
        if at % RANKS_A_HOST == 0:
            first_of_hosts.append(own)
    tell_peers(first_of_hosts, known)


def _run(address: str, words: Sequence[str], limit_s: float) -> tuple[float, float, int, str, str]:
    """Return the seconds on the clock, the CPU seconds of the command, its exit code and what it wrote."""
    before = os.times()
    try:
        done = subprocess.run(
            [PROBE, "-t", address, "--all", *words, "--timeout", f"{limit_s:g}"],
            capture_output=True, text=True, env=plain_environment(), check=False, timeout=limit_s,
        )  # fmt: skip
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, out, err = -1, "", f"it did not end within {limit_s:g} s"
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return after.elapsed - before.elapsed, cpu_s, code, out, err


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 512, 2048])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--commands", nargs="+", choices=list(COMMANDS), default=list(COMMANDS))
    parser.add_argument("--limit", type=float, default=280.0, help="seconds that a command may take")
    parser.add_argument("--canned", action="store_true", help="run statements to a rank for 8 ranks of 128 only")
    parser.add_argument("--show", action="store_true", help="print what each command has said, shortened")
    parser.add_argument("--keep", action="store_true", help="serve the first number of ranks until Enter, for a look")
    args = parser.parse_args()
    rows: list[list[object]] = []
    for num_ranks in args.ranks:
        for hangs in (False, True):
            names = [name for name in args.commands if (name == "hang") is hangs]
            if names:
                rows += _measured(num_ranks, args, names, hangs=hangs)
    headings = ["ranks", "command", "s on the clock", "CPU s of the command", "CPU s of all hosts", "of each host, ms"]
    print(table([*headings, "exit code"], rows, lambda at: at > 1))
    print()
    print(provenance())


def _measured(num_ranks: int, args: argparse.Namespace, names: Sequence[str], *, hangs: bool) -> list[list[object]]:
    rows: list[list[object]] = []
    num_hosts = -(-num_ranks // RANKS_A_HOST)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        addresses = addresses_of(num_hosts)
        fill(Path(folder), addresses, num_ranks, args.steps, hangs=hangs)
        with serving(Path(folder), addresses, is_canned=args.canned, with_recorders=True) as hosts_cpu_s:
            if args.keep:
                print(addresses[0], flush=True)
                input()
                return rows
            _run(addresses[0], ("ranks",), args.limit)  # warms up what was just started
            for name in names:
                before_s = hosts_cpu_s()
                took_s, cpu_s, code, out, err = _run(addresses[0], COMMANDS[name], args.limit)
                hosts_s = hosts_cpu_s() - before_s
                rows.append([num_ranks, name, f"{took_s:.1f}", f"{cpu_s:.2f}", f"{hosts_s:.1f}",
                             f"{1e3 * hosts_s / num_hosts:.0f}", code])  # fmt: skip
                if args.show:
                    print(f"--- {num_ranks} {name}: {rows[-1]}", *out.splitlines()[:12], sep="\n", file=sys.stderr)
                    print(*err.splitlines()[-6:], sep="\n", file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    main()
