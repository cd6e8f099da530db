"""Steps, phases and losses of real jobs in every framework, and the same result bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from probe_agent.recorder.steps.governor import turn_of

from .conftest import Trained

pytestmark = pytest.mark.torch

STEPS = 8
SINGLE = [
    ("transformers", "transformers", 2),
    ("accelerate", "accelerate", 2),
    ("lightning", "lightning", 2),
    ("compiled", "compiled_model", 1),
    ("compiled", "compiled_blocks", 1),
    ("compiled", "compiled_step", 1),
]
DISTRIBUTED = [
    ("distributed", "ddp", 1),
    ("distributed", "ddp_accumulating", 2),
    ("distributed", "fsdp2", 1),
]
#: Left to `make test-long`: tests/integration/programs has a program of each.
LONG = ("accelerate", "compiled")
EACH = pytest.mark.parametrize(
    ("kind", "name", "micro_batches", "rank"),
    [pytest.param(*one, 0, marks=pytest.mark.long if one[0] in LONG else ()) for one in SINGLE]
    + [(*one, rank) for one in DISTRIBUTED for rank in (0, 1)],
    ids=lambda value: str(value),
)
PHASES = "data_wait, coalesce(forward, 0), coalesce(backward, 0), optimizer, evaluation, generation, other"


@EACH
def test_one_row_a_step_whose_phases_add_up(
    trained: Callable[..., Trained], kind: str, name: str, micro_batches: int, rank: int
) -> None:
    training = trained(kind, name, rank)

    rows = training.rows("python.steps", f"step, micro_batches, sampled, duration, {PHASES}")

    # The step in which the recorder was started has no row; a later training of the process continues the numbers.
    numbers = [row[0] for row in rows]
    assert training.num_steps - 1 <= len(rows) <= training.num_steps
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert [row[2] for row in rows] == [turn_of(number, 2) is not None for number in numbers]
    whole = rows[1:]
    assert {row[1] for row in whole} == {micro_batches}
    assert sum(row[3] for row in whole) <= training.told["ended"] - training.told["began"]
    for row in rows:
        assert sum(row[4:]) == pytest.approx(row[3], rel=0.02)
        assert min(row[4:]) >= 0


@pytest.mark.parametrize(("name", "every", "batch_size"), [("transformers", 3, 8), ("lightning", 2, 8)])
def test_validation_is_not_part_of_training(
    trained: Callable[..., Trained], name: str, every: int, batch_size: int
) -> None:
    training = trained(name, name)

    rows = training.rows("python.steps", "evaluation, forward, batch_size, data_wait")
    phases = training.rows("python.torch_trace", "DISTINCT phase, step", "stage = 'forward'")

    # Counted from the end: the step after a validation has it, and the one after the last step is not recorded.
    evaluated = [row[0] > 0 for row in rows]
    assert evaluated == [number % every == 0 for number in range(STEPS - len(rows), STEPS)]
    assert {row[2] for row in rows[:-1]} == {batch_size}  # behind the last one, nothing is fetched in advance
    assert {row[0] for row in phases} == {"train", "eval"}


@EACH
def test_losses_are_those_of_the_job(
    trained: Callable[..., Trained], kind: str, name: str, micro_batches: int, rank: int
) -> None:
    training = trained(kind, name, rank)

    seen = [row[0] for row in training.rows("python.steps", "loss", "loss IS NOT NULL")]

    # Hugging Face's training_step gives the loss divided already, the others tell it whole.
    losses = training.told["losses"]
    steps = [losses[at : at + micro_batches] for at in range(0, len(losses), micro_batches)]
    by = 1 if name == "transformers" else micro_batches
    assert len(seen) >= training.num_steps // 2
    of_steps = [pytest.approx(sum(step) / by, rel=1e-6) for step in steps]
    at = 1 if name == "compiled_step" else 0  # its last step ends with a zero_grad that never comes
    assert seen == of_steps[len(of_steps) - at - len(seen) : len(of_steps) - at]


@EACH
def test_the_modules_of_sampled_steps_are_seen(
    trained: Callable[..., Trained], kind: str, name: str, micro_batches: int, rank: int
) -> None:
    training = trained(kind, name, rank)
    inside = {
        "transformers": "LlamaForCausalLM.model.layers.0.mlp.up_proj",
        "accelerate": "Sequential.2.inner",
        "lightning": "Sequential.2.inner",
        "compiled_model": "OptimizedModule",
        "compiled_blocks": "Sequential%.1",  # no hook is called for what is compiled in place
        "compiled_step": "Sequential%.2.inner",
        "ddp": "DistributedDataParallel.module.2.inner",
        "ddp_accumulating": "DistributedDataParallel#2.module.2.inner",
        "fsdp2": "FSDPSequential.2.inner",
    }[name]

    rows = training.rows("python.torch_trace", "step, compiled", f"module LIKE '{inside}' AND stage = 'forward'")

    sampled = training.rows("python.steps", "step", "sampled")
    ended = {row[0] for row in sampled}
    assert ended <= {row[0] for row in rows}  # evaluation after the last step may be in there too
    assert {row[1] for row in rows} == {name == "compiled_model"}


@EACH
def test_the_result_is_the_same_bit_for_bit_and_compiles_the_same(
    trained: Callable[..., Trained], kind: str, name: str, micro_batches: int, rank: int
) -> None:
    training = trained(kind, name, rank)

    assert training.told["digests"][0] == training.told["digests"][1]
    assert training.told["counters"][0] == training.told["counters"][1]
    assert set(training.told["warnings"][1]) <= set(training.told["warnings"][0])
    assert training.errors() == []


def test_a_job_that_only_generates_has_a_step_a_token(trained: Callable[..., Trained]) -> None:
    generating = trained("generating", "generating")

    steps = generating.rows("python.steps", "step, sampled, micro_batches, duration, forward")
    modules = generating.rows("python.torch_trace", "DISTINCT module, ts", "stage = 'forward'")

    assert len(steps) >= generating.num_steps
    assert [row[0] for row in steps] == list(range(steps[0][0], steps[0][0] + len(steps)))
    assert [row[1] for row in steps] == [turn_of(row[0], 2) is not None for row in steps]
    assert {row[2] for row in steps} == {0}
    assert all(0 < row[4] <= row[3] for row in steps)
    assert {"LlamaForCausalLM", "LlamaForCausalLM.model.layers.1.mlp.up_proj"} <= {row[0] for row in modules}
    assert generating.told["digests"][0] == generating.told["digests"][1]
    assert set(generating.told["warnings"][1]) <= set(generating.told["warnings"][0])
    assert generating.errors() == []
