"""Steps are found in every kind of loop, and their phases add up."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from probe_agent.recorder.hooks import optimizer as optimizer_hooks  # noqa: E402

PHASES = ("data_wait", "forward", "backward", "optimizer", "evaluation", "generation", "other")


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def train(net: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int, micro_batches: int = 1) -> None:
    for _ in range(num_steps):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            net(torch.ones(4, 8)).sum().backward()
        optimizer.step()


def assert_phases_add_up(step: dict[str, float]) -> None:
    phases = [step[name] or 0.0 for name in PHASES]
    assert sum(phases) == pytest.approx(step["duration"], rel=0.02)
    assert min(phases) >= 0.0


def test_phases_add_up_to_the_step(recording):
    net = model()
    with recording(trace_every=2) as it:
        train(net, torch.optim.AdamW(net.parameters()), 9)

    assert len(it.steps) == 8
    for step in it.steps:
        assert_phases_add_up(step)
    assert {step["forward"] is None for step in it.steps} == {False}


def test_accumulated_gradients_are_one_step(recording):
    net = model()
    with recording(trace_every=1) as it:
        train(net, torch.optim.SGD(net.parameters(), 0.1), 4, micro_batches=3)

    assert [step["micro_batches"] for step in it.steps] == [3, 3, 3]
    assert [step["step"] for step in it.steps] == [1, 2, 3]


def test_steps_during_which_a_question_traces_are_marked(recording):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with recording(trace_every=0) as it:
        train(net, optimizer, 3)
        with it.recorder.step.traced_by("leaks"):
            train(net, optimizer, 2)
        train(net, optimizer, 2)

    assert [step["traced"] for step in it.steps] == [False, False, True, True, True, False]


def test_two_optimizers_of_a_gan_count_as_the_first(recording):
    maker, judge = model(), model()
    first, second = (torch.optim.Adam(net.parameters()) for net in (judge, maker))
    with recording(trace_every=1) as it:
        for _ in range(5):
            train(judge, first, 1)
            train(maker, second, 1)

    assert [step["step"] for step in it.steps] == [1, 2, 3, 4]
    for step in it.steps:
        assert_phases_add_up(step)


def test_steps_that_grad_scaler_skips_are_marked(recording):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with recording(trace_every=1) as it:
        for number in range(6):
            optimizer.zero_grad()
            loss = net(torch.ones(4, 8)).sum() * (float("inf") if number == 3 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    assert [step["skipped"] for step in it.steps] == [False, False, True, False, False]
    assert [step["step"] for step in it.steps] == [1, 2, 3, 4, 5]


def test_a_closure_runs_its_forward_and_backward_inside_the_step(recording):
    net = model()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (net(torch.ones(4, 8)) ** 2).sum()
        time.sleep(0.01)
        loss.backward()
        return loss

    with recording(trace_every=1) as it:
        for _ in range(4):
            optimizer.step(closure)

    assert len(it.steps) == 3
    for step in it.steps:
        assert_phases_add_up(step)
        assert step["micro_batches"] >= 1
        assert step["optimizer"] < 0.01 * step["micro_batches"]


def test_an_optimizer_whose_step_is_compiled_steps_with_zero_grad(recording):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    compiled = torch.compile(optimizer.step, backend="eager")
    with recording(trace_every=1) as it:
        for _ in range(5):
            net(torch.ones(4, 8)).sum().backward()
            compiled()
            optimizer.zero_grad()

    assert [step["micro_batches"] for step in it.steps] == [1, 1, 1, 1]
    for step in it.steps:
        assert_phases_add_up(step)


def test_activation_checkpointing_is_marked_and_not_counted_twice(recording):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    net = Checkpointed()
    with recording(trace_every=1) as it:
        train(net, torch.optim.SGD(net.parameters(), 0.1), 3)

    inner = [row for row in it.trace if row["module"] == "Checkpointed.inner.0" and row["stage"] == "forward"]
    assert [row["recomputed"] for row in inner] == [False, True] * 2
    for step in it.steps:
        assert_phases_add_up(step)


def test_shapes_and_compiled_modules_are_shown(recording):
    inner = model()
    net = nn.Sequential(nn.Linear(8, 8), torch.compile(inner, backend="eager"))
    with recording(trace_every=1) as it:
        train(net, torch.optim.SGD(net.parameters(), 0.1), 4)

    forwards = {row["module"]: row for row in it.trace if row["stage"] == "forward"}
    assert forwards["Sequential.0"]["input_shapes"] == "4x8"
    assert {name: row["compiled"] for name, row in forwards.items()} == {
        "Sequential": False,
        "Sequential.0": False,
        "Sequential.1": True,
    }


def test_two_compiled_optimizers_step_with_the_first_ones_zero_grad(recording):
    maker, judge = model(), model()
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (judge, maker)]
    steps = [torch.compile(optimizer.step, backend="eager") for optimizer in optimizers]
    with recording(trace_every=1) as it:
        for _ in range(5):
            for net, optimizer, step in zip((judge, maker), optimizers, steps, strict=True):
                optimizer.zero_grad()
                net(torch.ones(4, 8)).sum().backward()
                step()

    # Whose zero_grad comes first after a backward counts: here that is the second's, once an iteration.
    assert [step["micro_batches"] for step in it.steps] == [2, 2, 2, 2]


def test_a_second_training_loop_is_found_beside_the_first_ones_optimizer(recording):
    first, second = model(), model()
    kept = torch.optim.SGD(first.parameters(), 0.1)
    with recording(trace_every=0) as it:
        train(first, kept, 3)
        train(second, torch.optim.SGD(second.parameters(), 0.1), optimizer_hooks.MAX_OTHERS)

    assert [step["step"] for step in it.steps] == list(range(1, len(it.steps) + 1))
    assert [step["micro_batches"] for step in it.steps[-20:]] == [1] * 20


@pytest.mark.parametrize("is_outer_first", [True, False])
def test_of_two_optimizers_the_one_that_steps_more_often_counts(recording, is_outer_first):
    """As in local SGD, where an outer optimizer steps once a round: whichever the recorder has seen first."""
    net = model()
    inner, outer = torch.optim.Adam(net.parameters()), torch.optim.SGD(net.parameters(), 0.1)
    train(net, inner, 40)
    with recording(trace_every=0) as it:
        if is_outer_first:
            outer.step()
        for _ in range(6):
            train(net, inner, 5)
            outer.step()

    settled = it.steps[-8:]
    assert [step["step"] for step in settled] == list(range(62, 70)), "the count of Adam, from 0"
    assert [step["micro_batches"] for step in settled] == [1] * 8


def test_of_two_optimizers_that_step_in_turns_the_first_one_counts(recording):
    nets = model(), model()
    first, second = (torch.optim.Adam(net.parameters()) for net in nets)
    with recording(trace_every=0) as it:
        for turn in range(8):
            for _ in range(4 if turn % 4 == 3 else 1):  # now and then the second one more often
                train(nets[1], second, 1)
            train(nets[0], first, 1)

    assert len(it.steps) == 13, "all of the second's but the first"
    assert {step["micro_batches"] for step in it.steps} == {1, 2}


def test_a_compiled_step_is_found_after_an_optimizer_that_is_gone(recording):
    net = model()
    with recording(trace_every=1) as it:
        train(net, torch.optim.SGD(net.parameters(), 0.1), 2)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        step = torch.compile(optimizer.step, backend="eager")
        for _ in range(3):
            net(torch.ones(4, 8)).sum().backward()
            step()
            optimizer.zero_grad()

    assert [step["step"] for step in it.steps] == [1, 2, 3, 4]
