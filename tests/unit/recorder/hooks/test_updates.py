"""Loops without a torch optimizer: a step is a backward that is followed by an update of the parameters."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

RATE = 0.1


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def by_data(parameters):
    for p in parameters:
        p.data -= RATE * p.grad
        p.grad = None


def past_autograd(parameters):
    for p in parameters:
        p.data.add_(p.grad, alpha=-RATE)
        p.grad.data.zero_()


def under_no_grad(parameters):
    with torch.no_grad():
        for p in parameters:
            p -= RATE * p.grad
            p.grad.zero_()


def by_new_storage(parameters):
    for p in parameters:
        p.data = p.data - RATE * p.grad
        p.grad = None


class OwnOptimizer:
    """An optimizer independent of torch's."""

    def __init__(self, parameters):
        self.parameters = list(parameters)

    def step(self):
        under_no_grad(self.parameters)


def by_another_optimizer(parameters):
    OwnOptimizer(parameters).step()


UPDATES = [by_another_optimizer, by_data, past_autograd, under_no_grad, by_new_storage]


def train(it, net, update, num_steps, micro_batches=1):
    """Train by hand; our own thread ticks between two steps, as in a job, only sooner."""
    losses = []
    for _ in range(num_steps):
        for _ in range(micro_batches):
            loss = (net(torch.ones(4, 8)) ** 2).sum()
            loss.backward()
            losses.append(loss.item())
        update(list(net.parameters()))
        if it is not None:
            it.tick()
    return losses


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_each_update_is_a_step_however_it_is_made(recording, update, micro_batches):
    net = model()

    with recording(trace_every=0) as it:
        train(it, net, update, 12, micro_batches)

    # Two updates make sure, the step of the third is not whole, and the last ends where the next begins.
    assert [step["step"] for step in it.steps] == list(range(1, 9))
    assert {step["micro_batches"] for step in it.steps} == {micro_batches}
    for step in it.steps:
        phases = ("data_wait", "forward", "backward", "optimizer", "other")
        assert sum(step[name] or 0.0 for name in phases) == pytest.approx(step["duration"], rel=0.02)
        assert step["forward"] is None  # it was over when the step was seen to begin


def test_backwards_without_an_update_are_no_steps(recording):
    net = model()

    with recording() as it:
        for _ in range(150):
            (net(torch.ones(4, 8)) ** 2).sum().backward()
            it.tick()
        assert it.recorder.step.micro_batches == 150

    assert it.steps == []


def test_a_gan_by_hand_counts_the_updates_of_its_first_network(recording):
    judge, maker = model(), nn.Linear(8, 8)

    def update(net):
        under_no_grad([p for p in net.parameters() if p.grad is not None])
        for one in (judge, maker):
            one.zero_grad()

    with recording(trace_every=0) as it:
        for _ in range(10):
            for _ in range(2):
                judge(torch.ones(4, 8)).sum().backward()
                update(judge)
            judge(maker(torch.ones(4, 8))).sum().backward()
            update(maker)
            it.tick()

    assert len(it.steps) in (16, 17, 18)


def test_an_optimizer_of_torch_ends_steps_instead(recording):
    net = model()
    with recording(trace_every=0) as it:
        train(it, net, by_data, 8)
        num_by_hand = len(it.steps)
        optimizer = torch.optim.SGD(net.parameters(), RATE)
        for _ in range(5):
            optimizer.zero_grad()
            (net(torch.ones(4, 8)) ** 2).sum().backward()
            optimizer.step()
            it.tick()

    assert num_by_hand == 4
    assert [step["lr"] for step in it.steps[-4:]] == [RATE] * 4
    assert [step["step"] for step in it.steps[-4:]] == [2, 3, 4, 5]  # zero_grad has ended the last one by hand


def test_an_optimizer_that_is_there_is_waited_for(recording):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), RATE)

    with recording() as it:
        train(it, net, by_data, 20)

    assert it.steps == []
    assert it.recorder.seen.optimizer_classes == ("SGD",)
    del optimizer


def test_a_step_ends_where_the_next_batch_is_fetched(recording):
    net = model()
    batches = DataLoader(TensorDataset(torch.ones(40, 8)), batch_size=4)

    with recording(trace_every=1) as it:
        for _ in range(2):
            for (x,) in batches:
                (net(x) ** 2).sum().backward()
                time.sleep(0.01)
                by_data(list(net.parameters()))
                it.tick()

    assert {step["batch_size"] for step in it.steps[1:]} <= {4, 8}
    forwards = [row["step"] for row in it.trace if row["stage"] == "forward" and row["module"] == "Sequential"]
    assert forwards == [step["step"] for step in it.steps if step["sampled"]]


def test_a_followed_module_begins_the_steps_and_shows_their_forward(recording):
    net = model()

    with recording(trace_every=2) as it:
        it.inference.follow(net)
        train(it, net, by_data, 12)

    assert len(it.steps) == 8
    assert all(step["forward"] > 0 for step in it.steps)
    deep = [row for row in it.trace if row["stage"] == "forward" and row["module"] == "Sequential"]
    assert len(deep) == len([step for step in it.steps if step["sampled"]])


def test_the_result_is_the_same_and_module_is_as_it_was(recording):
    before, alone = dict(vars(nn.Module)), model()
    expected = train(None, alone, by_data, 30)
    drawn = torch.rand(1)
    net = model()

    with recording(trace_every=2) as it:
        seen = train(it, net, by_data, 30)

    assert seen == expected
    assert torch.equal(torch.rand(1), drawn)
    assert dict(vars(nn.Module)) == before
    for mine, other in zip(net.parameters(), alone.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_loop_of_autograd_grad_on_new_tensors_has_steps(recording):
    with recording(trace_every=0) as it:
        w = torch.ones(8, requires_grad=True)
        for _ in range(12):
            (grad,) = torch.autograd.grad((w**2).sum(), w)
            w = (w - RATE * grad).detach().requires_grad_()
            it.tick()

    assert [step["step"] for step in it.steps] == list(range(1, 9))
