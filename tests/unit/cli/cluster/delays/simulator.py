"""Simulator of a job: ranks, groups, noise and delays, and the rows that they would record.

The oracle of the delay analysis: the cost of a planted delay is how much sooner the same job ends without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from probe_cli.cluster.delays.rows import RankRows, Who

START_S = 1_760_000_000.0
BUFFERED_S = 20e-6


@dataclass(frozen=True)
class Own:
    """The rank's own work; `place` is its name."""

    place: str
    seconds: float


@dataclass(frozen=True)
class Call:
    """A call of a collective; with `tag` it continues and waits later, with `by_cpp` its wait is invisible. It is made
    in every n-th step."""

    group: str
    op: str = "all_reduce"
    tag: str = ""
    by_cpp: bool = False
    transfer: float = 0.0002
    every: int = 1


@dataclass(frozen=True)
class P2P:
    op: str
    peer: int
    tag: str = ""
    phase: str = ""
    transfer: float = 0.0002


@dataclass(frozen=True)
class Wait:
    tag: str


@dataclass(frozen=True)
class WaitForCpp:
    """The wait of DDP's reducer at the end of backward."""


Action = Own | Call | P2P | Wait | WaitForCpp


@dataclass(frozen=True)
class Job:
    """`programs` is the work of each rank in a step; `groups` are the ranks of each group."""

    programs: Sequence[Sequence[Action]]
    groups: Mapping[str, Sequence[int]]
    roles: Sequence[Mapping[str, int]] = ()
    num_hosts: int = 1
    buffered: bool = False

    @property
    def num_ranks(self) -> int:
        return len(self.programs)

    def host(self, rank: int) -> int:
        return rank * self.num_hosts // self.num_ranks


#: Seconds that a rank takes more in a step at a place.
Delay = Callable[[int, int, str], float]


@dataclass
class Ran:
    """The result: for each rank its calls and the end of its steps."""

    job: Job
    calls: list[list[dict[str, object]]]
    ends: np.ndarray  # R x K + 1
    owns: np.ndarray  # R x K
    lengths: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.lengths = np.diff(self.ends.mean(axis=0))


def no_delay(rank: int, step: int, place: str) -> float:
    return 0.0


def run(job: Job, num_steps: int, *, noise: float = 0.0, seed: int = 0, delay: Delay = no_delay) -> Ran:
    """Simulate `num_steps`. `noise` is the part by which own times scatter, the same with and without a delay."""
    chance = np.random.default_rng(seed)
    ranks = range(job.num_ranks)
    factors = [1 + noise * chance.gamma(2.0, 0.7, (num_steps, len(program))) for program in job.programs]
    now = [0.001 * rank for rank in ranks]
    at = [(0, 0)] * job.num_ranks
    ends = np.zeros((job.num_ranks, num_steps + 1))
    ends[:, 0] = now
    owns = np.zeros((job.num_ranks, num_steps))
    rows: list[list[dict[str, object]]] = [[] for _ in ranks]
    met: dict[tuple[object, ...], dict[int, float]] = {}
    counts: list[dict[object, int]] = [{} for _ in ranks]
    pending: list[dict[str, tuple[tuple[object, ...], int, float, dict[str, object]]]] = [{} for _ in ranks]
    by_cpp: list[list[tuple[tuple[object, ...], int, float]]] = [[] for _ in ranks]

    def over(key: tuple[object, ...], size: int, transfer: float, began: float, op: str) -> float | None:
        """Return when it completes; None while a rank is missing."""
        if op == "send" and job.buffered:
            return began + BUFFERED_S
        came = met.get(key, {})
        return max(came.values()) + transfer if len(came) == size else None

    def begin(rank: int, step: int, action: Call | P2P) -> tuple[tuple[object, ...], int, dict[str, object]]:
        if isinstance(action, Call):
            number = counts[rank].get(action.group, 0)
            counts[rank][action.group] = number + 1
            key: tuple[object, ...] = (action.group, number)
            size, group, peer, cpp = len(job.groups[action.group]), action.group, -1, action.by_cpp
        else:
            pair = (rank, action.peer) if action.op == "send" else (action.peer, rank)
            number = counts[rank].get((action.op, pair), 0)
            counts[rank][action.op, pair] = number + 1
            key, size, group, peer, cpp, number = (pair, number), 2, "world", action.peer, False, -1
        met.setdefault(key, {})[rank] = now[rank]
        row = {"step": step, "group": group, "seq": number, "op": action.op, "peer": peer, "start": now[rank]}
        row |= {
            "ended": np.inf,
            "wait": np.nan,
            "phase": getattr(action, "phase", ""),
            "by_cpp": cpp,
            "on_device": False,
        }
        rows[rank].append(row)
        return key, size, row

    begun: list[tuple[tuple[object, ...], int, dict[str, object]] | None] = [None] * job.num_ranks
    moved = True
    while moved:
        moved = False
        for rank in ranks:
            while at[rank][0] < num_steps:
                step, place = at[rank]
                program = job.programs[rank]
                if place == len(program):
                    ends[rank, step + 1] = now[rank]
                    at[rank] = step + 1, 0
                    moved = True
                    continue
                action = program[place]
                if isinstance(action, Own):
                    took = action.seconds * factors[rank][step, place] + delay(rank, step, action.place)
                    now[rank] += took
                    owns[rank, step] += took
                elif isinstance(action, Wait):
                    key, size, transfer, row = pending[rank][action.tag]
                    done = over(key, size, transfer, float(row["start"]), str(row["op"]))  # type: ignore[arg-type]
                    if done is None:
                        break
                    del pending[rank][action.tag]
                    done = max(done, now[rank])
                    row |= {"wait": done - now[rank], "ended": done}
                    now[rank] = done
                elif isinstance(action, WaitForCpp):
                    dones = [over(key, size, transfer, 0.0, "") for key, size, transfer in by_cpp[rank]]
                    if any(done is None for done in dones):
                        break
                    now[rank] = max([now[rank], *(done for done in dones if done is not None)])
                    by_cpp[rank].clear()
                elif isinstance(action, P2P) or (step + 1) % action.every == 0:
                    if begun[rank] is None:
                        begun[rank] = begin(rank, step, action)
                        moved = True
                    found = begun[rank]
                    assert found is not None
                    key, size, row = found
                    if isinstance(action, Call) and action.by_cpp:
                        by_cpp[rank].append((key, size, action.transfer))
                    elif action.tag:
                        pending[rank][action.tag] = key, size, action.transfer, row
                    else:
                        done = over(key, size, action.transfer, now[rank], action.op)
                        if done is None:
                            break
                        row |= {"wait": done - now[rank], "ended": done}
                        now[rank] = done
                    begun[rank] = None
                at[rank] = step, place + 1
                moved = True
    assert all(step == num_steps for step, _ in at), "the simulated job hangs"
    return Ran(job, rows, ends, owns)


def told(
    ran: Ran,
    *,
    clock_offsets: Sequence[float] = (),
    clock_errors: Sequence[float] = (),
    uncertainty: float = 0.0,
    first_steps: Sequence[int] = (),
    first_rows: Sequence[int] = (),
    num_late: int = 0,
    order: Sequence[int] = (),
    scale: float = 1.0,
) -> list[RankRows]:
    """Return the rows. By host: its clock, and the error of our estimate; by rank: the number of its first step, and
    the step before which its rows are overwritten; `num_late` steps of C++'s rows are not written yet."""
    found = []
    job = ran.job
    for rank in order or range(job.num_ranks):
        host = job.host(rank)
        offset = clock_offsets[host] if clock_offsets else 0.0
        error = clock_errors[host] if clock_errors else 0.0
        first = first_steps[rank] if first_steps else 0
        gone = first_rows[rank] if first_rows else 0
        num_steps = ran.ends.shape[1] - 1
        kept = range(gone, num_steps)
        last = num_steps - num_late
        rows = [
            row
            for row in ran.calls[rank]
            if int(row["step"]) >= gone and not (row["by_cpp"] and int(row["step"]) >= last)  # type: ignore[call-overload]
        ]
        calls = {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else _no_calls()
        calls["step"] = calls["step"] + first
        for name in ("start", "ended"):
            calls[name] = np.round(calls[name] * scale + START_S + offset, 6)
        calls["wait"] = calls["wait"] * scale
        ended = ran.ends[rank] * scale + START_S + offset
        nothing = np.full(len(kept), np.nan)
        steps = dict.fromkeys(("forward", "backward", "evaluation", "generation", "other", "data_wait"), nothing)
        steps |= {
            "number": np.array(kept) + first,
            "ended": np.round(ended[gone + 1 :], 6),
            "duration": np.diff(ended)[gone:],
            "optimizer": np.zeros(len(kept)),
        }
        roles = job.roles[rank] if job.roles else {}
        who = Who(rank, f"host{host}", 100 + rank)
        found.append(RankRows(who, steps, calls, roles, offset + error, uncertainty))
    return found


def _no_calls() -> dict[str, np.ndarray]:
    texts, numbers = ("group", "op", "phase"), ("step", "seq", "peer")
    found = {name: np.array([], dtype=str) for name in texts} | {name: np.array([], dtype=np.int64) for name in numbers}
    return found | {name: np.zeros(0) for name in ("start", "ended", "wait", "by_cpp", "on_device")}


# Jobs of each kind.


def ddp(num_ranks: int = 4, num_buckets: int = 3, *, num_hosts: int = 1, metrics: bool = False) -> Job:
    """DDP: C++ calls only, and the optimizer's work; with `metrics` a Python call after backward."""
    program: list[Action] = [Own("data", 0.001), Own("forward", 0.006)]
    for number in range(num_buckets):
        program += [Own(f"backward {number}", 0.003), Call("world", by_cpp=True)]
    program.append(WaitForCpp())
    if metrics:
        program += [Own("between", 0.001), Call("world")]
    program.append(Own("optimizer", 0.002))
    return Job([program] * num_ranks, {"world": range(num_ranks)}, num_hosts=num_hosts)


def functional(num_ranks: int = 4, num_layers: int = 3) -> Job:
    """Layers with a functional collective each: C++ calls it, and its result is needed at once."""
    program: list[Action] = [Own("data", 0.001)]
    for layer in range(num_layers):
        program += [Own(f"layer {layer}", 0.004), Call("world", by_cpp=True), WaitForCpp()]
    program.append(Own("optimizer", 0.002))
    return Job([program] * num_ranks, {"world": range(num_ranks)})


def tp_dp(tp: int = 2, dp: int = 2, num_layers: int = 3, *, num_hosts: int = 1) -> Job:
    groups = {f"tp{at}": [at * tp + k for k in range(tp)] for at in range(dp)}
    groups |= {f"dp{at}": [k * tp + at for k in range(dp)] for at in range(tp)}
    programs, roles = [], []
    for rank in range(tp * dp):
        program: list[Action] = [Own("data", 0.001)]
        for layer in range(num_layers):
            program += [Own(f"layer {layer}", 0.004), Call(f"tp{rank // tp}")]
        program += [Own("before dp", 0.004), Call(f"dp{rank % tp}"), Own("optimizer", 0.002)]
        programs.append(program)
        roles.append({"tp": rank % tp, "dp": rank // tp})
    return Job(programs, groups, roles, num_hosts=num_hosts)


def pipeline(
    num_stages: int = 4,
    num_batches: int = 4,
    *,
    dp: int = 1,
    schedule: str = "gpipe",
    buffered: bool = False,
    num_hosts: int = 1,
) -> Job:
    """Stages of a pipeline, each `dp` times; the replicas of a stage meet at its end."""
    programs, roles = [], []
    groups = {f"stage{at}": [at * dp + k for k in range(dp)] for at in range(num_stages)} if dp > 1 else {}
    for rank in range(num_stages * dp):
        stage = rank // dp
        program: list[Action] = [Own("data", 0.0005)]
        if schedule == "gpipe":
            for number in range(num_batches):
                program += [P2P("recv", rank - dp, phase="forward")] * (stage > 0) + [Own(f"forward {number}", 0.003)]
                program += [P2P("send", rank + dp, tag=f"f{number}", phase="forward")] * (stage < num_stages - 1)
            for number in range(num_batches):
                program += [P2P("recv", rank + dp, phase="backward")] * (stage < num_stages - 1) + [
                    Own(f"backward {number}", 0.005)
                ]
                program += [P2P("send", rank - dp, tag=f"b{number}", phase="backward")] * (stage > 0)
            for number in range(num_batches):
                program += [Wait(f"f{number}")] * (stage < num_stages - 1) + [Wait(f"b{number}")] * (stage > 0)
        else:
            warm = min(num_batches, num_stages - stage - 1)
            order = ["f"] * warm + ["f", "b"] * (num_batches - warm) + ["b"] * warm
            numbers = {"f": 0, "b": 0}
            for kind in order:
                number = numbers[kind]
                numbers[kind] += 1
                if kind == "f":
                    program += [P2P("recv", rank - dp, phase="forward")] * (stage > 0) + [
                        Own(f"forward {number}", 0.003)
                    ]
                    program += [P2P("send", rank + dp, tag=f"f{number}", phase="forward")] * (stage < num_stages - 1)
                else:
                    program += [P2P("recv", rank + dp, phase="backward")] * (stage < num_stages - 1) + [
                        Own(f"backward {number}", 0.005)
                    ]
                    program += [P2P("send", rank - dp, tag=f"b{number}", phase="backward")] * (stage > 0)
            for number in range(num_batches):
                program += [Wait(f"f{number}")] * (stage < num_stages - 1) + [Wait(f"b{number}")] * (stage > 0)
        if dp > 1:
            program.append(Call(f"stage{stage}"))
        program.append(Own("optimizer", 0.002))
        programs.append(program)
        roles.append({"pp": stage, "dp": rank % dp})
    return Job(programs, groups, roles, num_hosts=num_hosts, buffered=buffered)


def local_sgd(num_ranks: int = 4, every: int = 10) -> Job:
    """Ranks work by themselves, and average their weights in every n-th step."""
    program = [Own("data", 0.002), Own("forward", 0.006), Own("optimizer", 0.002), Call("world", every=every)]
    return Job([program] * num_ranks, {"world": range(num_ranks)})


def fsdp(num_ranks: int = 4, num_layers: int = 3, *, num_hosts: int = 1) -> Job:
    """Gather each layer's weights while the one before computes."""
    program: list[Action] = [Own("data", 0.001), Call("world", "all_gather", tag="g0")]
    for layer in range(num_layers):
        program.append(Wait(f"g{layer}"))
        if layer + 1 < num_layers:
            program.append(Call("world", "all_gather", tag=f"g{layer + 1}"))
        program.append(Own(f"forward {layer}", 0.004))
    for layer in reversed(range(num_layers)):
        program.append(Own(f"backward {layer}", 0.005))
        program.append(Call("world", "reduce_scatter", tag=f"r{layer}"))
    program += [Wait(f"r{layer}") for layer in reversed(range(num_layers))]
    program.append(Own("optimizer", 0.002))
    return Job([program] * num_ranks, {"world": range(num_ranks)}, num_hosts=num_hosts)


def hierarchical(num_hosts: int = 2, per_host: int = 4) -> Job:
    """A reduction within each host, and one between their first ranks, which broadcast the result."""
    num_ranks = num_hosts * per_host
    groups = {f"host{at}": range(at * per_host, (at + 1) * per_host) for at in range(num_hosts)}
    groups["leaders"] = range(0, num_ranks, per_host)
    programs = []
    for rank in range(num_ranks):
        own = f"host{rank // per_host}"
        program: list[Action] = [Own("forward", 0.006), Own("backward", 0.009), Call(own, "reduce_scatter")]
        if rank % per_host == 0:
            program += [Own("leader", 0.0005), Call("leaders")]
        program += [Call(own, "all_gather"), Own("optimizer", 0.002)]
        programs.append(program)
    return Job(programs, groups, num_hosts=num_hosts)
