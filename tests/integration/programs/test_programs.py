"""Programs of forty kinds compute the same as alone, and their rows match their own counts and times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from statistics import median
from typing import Any

import pytest

from .conftest import Programs, Ran, Row

pytestmark = pytest.mark.torch

#: Programs that train with an optimizer, each with what it needs beside torch and its number of ranks.
TRAINING: dict[str, tuple[tuple[str, ...], int]] = {
    "accelerate_accumulate": (("accelerate",), 1),
    "amp": ((), 1),
    "checkpointing": ((), 1),
    "compiled": ((), 1),
    "custom_function": ((), 1),
    "ddp": ((), 2),
    "ema": ((), 1),
    "forked_trainer": ((), 1),
    "fsdp2": ((), 2),
    "gan": ((), 1),
    "lbfgs": ((), 1),
    "lightning_fit": (("lightning",), 1),
    "mnist": ((), 1),
    "nanogpt": ((), 1),
    "notebook": (("IPython",), 1),
    "own_optimizer": ((), 1),
    "own_tools": ((), 1),
    "pipeline": ((), 2),
    "plain_sgd": ((), 1),
    "ppo": ((), 1),
    "reinforce": ((), 1),
    "tensor_parallel": ((), 4),
    "tied": ((), 1),
    "two_threads": ((), 1),
    "workers": ((), 1),
    "grpo": (("transformers",), 1),
    "hf_trainer": (("transformers",), 1),
}
#: Programs in which nothing of torch's ends a step; None for those that do without torch.
OTHERS: dict[str, tuple[str, ...] | None] = {
    "asyncio_server": (),
    "evolution": (),
    "functional": (),
    "inference": (),
    "manual_sgd": (),
    "thread_pool_server": (),
    "gevent_loop": None,
    "numpy_loop": None,
}
#: Left to `make test-long`: four processes on two cores, the slowest of what tests/integration/frameworks has too, and
#: those whose parts other programs have: `nanogpt` accumulates, test_compiled_matrix.py compiles, `grpo` and
#: `reinforce` learn from their own samples, `hf_trainer` trains a transformer.
LONG = {
    *("accelerate_accumulate", "amp", "compiled", "ema", "fsdp2", "lightning_fit", "mnist", "plain_sgd", "ppo"),
    *("tensor_parallel", "tied"),
}
EACH = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in TRAINING]
)
PHASES = ("data_wait", "forward", "backward", "optimizer", "evaluation", "generation", "other")
#: Trainers whose validation has more in it than the program can hold a stopwatch to.
HAVE_MORE = {(name, "evaluation") for name in ("hf_trainer", "lightning_fit")}
#: What a clock read in the program and one in a hook lie apart, a measurement: 30 µs, and three times that on a slow
#: machine.
APART_S = 0.0001


def recorded(programs: Programs, name: str) -> list[Ran]:
    """Return the processes of a recorded job."""
    needs, ranks = TRAINING[name]
    return programs.recorded(name, all_there(needs), ranks)


def all_there(needs: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the modules to import before the program is forked, none if it needs no torch; skip if one is missing."""
    for module in needs or ():
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed (extra `dev`)")
    return () if needs is None else ("torch", *needs)


def assert_close(seen: Sequence[float], own: Sequence[float], num: int = 1) -> None:
    """Check that the rows, of `num` measurements each, are within 5 % of the program's own clock.

    Rows of zero on both sides do not count. The median of the others does, and not their sum: a busy machine stops a
    program between two readings of a clock, and a few such stops outweigh everything else in a sum.
    """
    pairs = [pair for pair in zip(seen, own, strict=True) if any(pair)]
    if pairs:
        apart, usual = median(row - clock for row, clock in pairs), median(clock for _, clock in pairs)
        assert abs(apart) <= 0.05 * usual + num * APART_S, f"apart by {apart:.6f} s: recorded, program's own: {pairs}"


def clocked(truth: Mapping[str, Any], phase: str, row: Row) -> float:
    """Return the seconds of a phase in a row's step, by the program's own clock."""
    seconds: float = truth["seconds"][phase].get(str(row["step"]), 0.0)
    return seconds


def assert_of_each(programs: Programs, name: str, check: Callable[[Ran], None]) -> None:
    """Check every process of a recorded job. A busy machine disturbs single runs, so one whose sums are off is
    repeated, twice at most."""
    needs, ranks = TRAINING[name]
    runs = recorded(programs, name)
    for attempt in range(3):
        try:
            for ran in runs:
                check(ran)
            return
        except AssertionError:
            if attempt == 2:
                raise
            runs = programs.record(name, all_there(needs), ranks)


@EACH
def test_it_computes_and_says_what_its_twin_does(programs: Programs, name: str) -> None:
    needs, ranks = TRAINING[name]

    alone = programs.twin(name, all_there(needs), ranks)
    ran = recorded(programs, name)

    assert [one.said for one in ran] == [one.said for one in alone]
    assert [one.tables["probe.errors"] for one in ran] == [[]] * ranks


@pytest.mark.parametrize("name", OTHERS)
def test_it_computes_and_says_what_its_twin_does_where_nothing_ends_a_step(programs: Programs, name: str) -> None:
    needs = all_there(OTHERS[name])
    if name == "gevent_loop":
        pytest.importorskip("gevent")

    alone = programs.twin(name, needs)
    ran = programs.recorded(name, needs)

    assert [one.said for one in ran] == [one.said for one in alone]
    assert [one.tables["probe.errors"] for one in ran] == [[]]


@EACH
def test_steps_are_those_the_program_counts(programs: Programs, name: str) -> None:
    for ran in recorded(programs, name):
        truth = ran.truth

        # The step in which the recorder came, here the first, is not whole and has no row.
        assert [row["step"] for row in ran.steps] == list(range(1, truth["steps"]))
        micro_batches = truth.get("num_calls") or [truth["micro_batches"] or 1] * truth["steps"]
        assert [row["micro_batches"] for row in ran.steps] == micro_batches[1:]
        if "batch_size" in truth:
            assert {row["batch_size"] for row in ran.steps} == {truth["batch_size"]}
        if "skipped" in truth:
            assert [row["skipped"] for row in ran.steps] == truth["skipped"][1:]
        if "lr" in truth:
            assert [row["lr"] for row in ran.steps] == truth["lr"][1:]


def test_replicas_of_a_data_parallel_program_have_the_same_checksums(programs: Programs) -> None:
    of_rank = [
        {row["step"]: row["checksum"] for row in ran.tables["python.replicas"]} for ran in recorded(programs, "ddp")
    ]

    assert of_rank[0] == of_rank[1]
    assert len(set(of_rank[0].values())) == len(of_rank[0]) > 1


@EACH
def test_losses_are_those_the_program_logs(programs: Programs, name: str) -> None:
    for ran in recorded(programs, name):
        truth = ran.truth
        if not truth["losses"]:
            continue  # a rank of a pipeline that has none

        seen = [float(row["loss"]) for row in ran.steps]  # infinity comes as a text

        assert seen == pytest.approx(truth["losses"][1:], rel=1e-6)


@pytest.mark.busy_machine("compares two clocks in steps of 3 ms, between which the machine may do something else")
@EACH
def test_phases_sum_up_to_the_programs_own_clock(programs: Programs, name: str) -> None:
    def check(ran: Ran) -> None:
        truth = ran.truth
        for phase in set(PHASES) & set(truth["seconds"]):
            rows = [row for row in ran.steps if row[phase] is not None]
            if phase == "optimizer":  # its end, on the program's clock, is that of what we do between two steps
                sampled = {number for row in rows if row["sampled"] for number in (row["step"], row["step"] - 1)}
                rows = [row for row in rows if row["step"] not in sampled]
            assert rows
            seen, own = [row[phase] for row in rows], [clocked(truth, phase, row) for row in rows]
            if phase == "forward":  # up to where backward begins: what the program does there is in it, loss and all
                others = [other for other in truth["seconds"] if other != "optimizer"]
                for at, row in enumerate(rows):
                    rest = row["duration"] - row["optimizer"] - sum(clocked(truth, other, row) for other in others)
                    own[at] += min(max(0.0, seen[at] - own[at]), max(0.0, rest))
            if (name, phase) in HAVE_MORE:
                assert sum(own) < sum(seen) < 2 * sum(own)
            else:
                per_batch = 4 if phase == "optimizer" else 1  # the row is written on its clock
                assert_close(seen, own, max(1, truth["micro_batches"]) * per_batch)

    assert_of_each(programs, name, check)


@pytest.mark.busy_machine("compares two clocks in calls of 3 ms, between which the machine may do something else")
@EACH
def test_every_call_of_a_module_has_a_row_with_its_time(programs: Programs, name: str) -> None:
    def check(ran: Ran) -> None:
        sampled = {row["step"] for row in ran.steps if row["sampled"]}
        calls = [call for call in ran.truth["calls"] if call[3] in sampled]
        for module, stage, doing in {tuple(call[:3]) for call in calls if call[1] in ("forward", "backward")}:
            own = [call[4] for call in calls if call[:3] == [module, stage, doing]]
            rows = [row for row in ran.trace(stage) if row["module"] == module and row["step"] in sampled]
            seen = [row["duration"] for row in rows if row["phase"] == doing]
            assert len(seen) == len(own), (module, stage, doing)
            assert sum(seen) > sum(own)
            # A backward ends for us when an operator outside begins, and what is computed again is not timed as such.
            if stage == "forward" or module not in {row["module"] for row in ran.trace("forward") if row["recomputed"]}:
                assert_close(seen, own, 4 if stage == "backward" else 1)

    assert_of_each(programs, name, check)


@EACH
def test_phases_add_up_to_the_step_and_self_times_to_the_phase(programs: Programs, name: str) -> None:
    for ran in recorded(programs, name):
        for step in ran.steps:
            phases = [step[phase] or 0.0 for phase in PHASES]
            assert sum(phases) == pytest.approx(step["duration"], rel=1e-6)
            assert min(phases) >= 0.0
            if step["sampled"]:
                forward, backward = (
                    sum(
                        row["self_duration"]
                        for row in ran.trace(stage)
                        if row["step"] == step["step"] and row["phase"] in ("train", "other") and not row["recomputed"]
                    )
                    for stage in ("forward", "backward")
                )
                assert forward <= step["forward"] * 1.000001
                assert backward <= (step["backward"] or 0.0) * 1.000001
