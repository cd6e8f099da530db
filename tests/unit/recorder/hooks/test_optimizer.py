"""python.steps: one row per step in any kind of loop, and nothing left behind."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack

import pytest
import torch
import torch.optim.optimizer as torch_optimizer

from probe_agent.recorder.operations import optimizers


def train(model, optimizer, steps, loss_of=lambda out: out.square().mean()):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model(torch.ones(4, 8)))
        loss.backward()
        optimizer.step()
        time.sleep(0.003)


def test_every_step_after_the_first_has_a_row(recording):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)

    with recording() as it:
        train(model, optimizer, 6)

    assert [row["step"] for row in it.steps] == [1, 2, 3, 4, 5]
    assert {row["lr"] for row in it.steps} == {0.25}


def test_steps_continue_the_optimizers_own_count(recording):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 40)

    with recording() as it:
        train(model, optimizer, 3)

    assert [row["step"] for row in it.steps] == [41, 42]


@pytest.mark.parametrize(("kind", "is_anew"), [(torch.optim.AdamW, True), (torch.optim.SGD, False)])
def test_an_optimizer_that_the_job_makes_anew_is_told_from_one_that_it_keeps(recording, kind, is_anew):
    model = torch.nn.Linear(8, 8)

    with recording() as it:
        optimizer = kind(model.parameters(), lr=1e-3)
        train(model, optimizer, 5)
        for _ in range(5):
            optimizer = kind(model.parameters(), lr=1e-3)
            train(model, optimizer, 1)

    assert [row["new_optimizer"] for row in it.steps] == [False] * 4 + [is_anew] * 5


def test_the_loss_is_the_one_that_backward_was_called_on(recording):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    expected = model(torch.ones(4, 8)).square().mean().item()

    with recording() as it:
        train(model, optimizer, 4)

    assert [row["loss"] for row in it.steps] == [expected] * 3


def test_a_loss_of_nan_is_recorded_as_nan_and_a_missing_one_as_null(recording):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    with recording() as it:
        train(model, optimizer, 3, loss_of=lambda out: out.mean() * math.nan)
        for _ in range(2):
            model(torch.ones(4, 8)).backward(torch.ones(4, 8))
            optimizer.step()

    assert math.isnan(it.steps[1]["loss"])
    assert it.steps[-1]["loss"] is None


def test_two_optimizers_make_one_step(recording):
    generator, critic = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
    first = torch.optim.SGD(generator.parameters(), lr=0.1)
    second = torch.optim.SGD(critic.parameters(), lr=0.1)

    with recording() as it:
        for _ in range(5):
            critic(generator(torch.ones(4, 8))).mean().backward()
            first.step()
            second.step()

    assert [row["step"] for row in it.steps] == [1, 2, 3, 4]


class Nested(torch.optim.AdamW):
    """Its step calls that of the class it is derived from, for which torch calls hooks as well."""

    def __init__(self, parameters, told):
        super().__init__(parameters)
        self.told = told
        self.register_step_pre_hook(lambda *_: told())
        self.register_step_post_hook(lambda *_: told())

    def step(self, closure=None):
        super().step(closure)
        self.told()


INSTANTS = ("before both", "before the inner", "after the inner", "between the ends", "after both")


@pytest.mark.parametrize("at", INSTANTS)
def test_an_attach_inside_a_step_that_calls_another_counts_one(recording, at):
    model = torch.nn.Linear(8, 8)
    num_told, found = 0, []

    with ExitStack() as stack:

        def told():
            nonlocal num_told
            if num_told == 3 * len(INSTANTS) + INSTANTS.index(at):
                found.append(stack.enter_context(recording()))
            num_told += 1

        torch.optim.AdamW([torch.zeros(1)])  # torch calls hooks for the inner step from now on
        train(model, Nested(model.parameters(), told), 8)

    (it,) = found
    first = 5 if at == "after both" else 4  # of the step that the attach was in no end was seen
    assert [row["step"] for row in it.steps] == list(range(first, 8))
    assert {row["counted"] for row in it.steps} == {True}


class Adversaries:
    def __init__(self):
        self.nets = [torch.nn.Linear(8, 8) for _ in range(3)]
        self.optimizer_g = torch.optim.Adam(self.nets[0].parameters())
        self.others = [torch.optim.Adam(self.nets[1].parameters()), torch.optim.SGD(self.nets[2].parameters(), 0.1)]

    def train(self, steps):
        for _ in range(steps):
            for net in self.nets:
                net(torch.ones(4, 8)).mean().backward()
            for optimizer in (self.optimizer_g, *self.others):
                optimizer.step()


def test_optimizers_of_one_class_have_a_row_each_by_the_name_that_holds_them(recording):
    trainer = Adversaries()
    with recording(trace_every=1) as it:
        trainer.train(4)

    rows = [row for row in it.trace if row["stage"] == "step"]
    assert {row["step"] for row in rows} == {1, 2, 3}
    for step in it.steps[1:]:  # in the first one the second had not yet stepped
        own = {row["module"]: row["duration"] for row in rows if row["step"] == step["step"]}
        assert set(own) == {"Adam optimizer_g", "Adam others[0]", "SGD"}
        assert math.isclose(sum(own.values()), step["optimizer"], rel_tol=1e-6)


def test_optimizers_of_one_class_that_nothing_names_are_numbered(recording):
    nets = [torch.nn.Linear(8, 8) for _ in range(2)]

    def stepped_by(net):
        return torch.optim.SGD(net.parameters(), 0.1).step

    steps = [stepped_by(net) for net in nets]
    with recording(trace_every=1) as it:
        for _ in range(3):
            for net, step in zip(nets, steps, strict=True):
                net(torch.ones(4, 8)).mean().backward()
                step()

    assert {row["module"] for row in it.trace if row["step"] == 2 and row["stage"] == "step"} == {"SGD", "SGD#2"}


def test_phases_lie_within_the_step(recording):
    class Slow(torch.nn.Module):
        def forward(self, x):
            time.sleep(0.01)
            return x

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), Slow())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with recording(trace_every=1) as it:
        train(model, optimizer, 4)

    for row in it.steps:
        assert row["forward"] >= 0.01
        assert row["forward"] + row["backward"] + row["optimizer"] + row["data_wait"] <= row["duration"]
        assert row["rss"] > 10


def test_waiting_for_the_loader_is_seen_in_iterators_that_exist_already(recording):
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            time.sleep(0.01)
            return torch.ones(8)

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(torch.utils.data.DataLoader(Slow()))

    with recording() as it:
        for batch in batches:
            model(batch).mean().backward()
            optimizer.step()

    assert all(0.01 <= row["data_wait"] <= row["duration"] for row in it.steps)


def test_detach_puts_torchs_own_objects_back(recording):
    before = [
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
        torch.autograd.backward,
        torch.amp.grad_scaler.GradScaler.scale,
        torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
        torch.utils.data.DataLoader.__iter__,
    ]

    with recording(trace_every=1):
        train(torch.nn.Linear(8, 8), torch.optim.SGD(torch.nn.Linear(8, 8).parameters(), lr=0.1), 2)

    after = [
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
        torch.autograd.backward,
        torch.amp.grad_scaler.GradScaler.scale,
        torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
        torch.utils.data.DataLoader.__iter__,
    ]
    assert all(one is other for one, other in zip(before, after, strict=True))
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_hooks_of_the_job_registered_meanwhile_live_on_and_can_be_removed(recording):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []

    with recording():
        handle = torch_optimizer.register_optimizer_step_post_hook(lambda *_: calls.append("job"))
        train(model, optimizer, 1)
    train(model, optimizer, 1)
    handle.remove()
    train(model, optimizer, 1)

    assert calls == ["job", "job"]
    assert not torch_optimizer._global_optimizer_post_hooks


def test_a_hook_of_the_job_removed_meanwhile_stays_removed(recording):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []
    handle = torch_optimizer.register_optimizer_step_post_hook(lambda *_: calls.append("job"))

    with recording():
        train(model, optimizer, 1)
        handle.remove()
        train(model, optimizer, 1)
    train(model, optimizer, 1)

    assert calls == ["job"]


def test_weights_and_random_numbers_are_bit_identical(recording):
    def run():
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8))
        train(model, torch.optim.AdamW(model.parameters()), 12)
        return [parameter.clone() for parameter in model.parameters()], torch.rand(1)

    alone = run()
    with recording(trace_every=1, trace_deep_every=1):
        watched = run()

    assert all(torch.equal(one, other) for one, other in zip(alone[0], watched[0], strict=True))
    assert torch.equal(alone[1], watched[1])


@pytest.mark.parametrize("num_optimizers", [1, 2])
def test_steps_whose_gradients_were_cleared_after_backward_are_counted(recording, num_optimizers):
    models = [torch.nn.Linear(8, 8) for _ in range(num_optimizers)]
    held = [torch.optim.AdamW(model.parameters()) for model in models]

    with recording() as it:
        for number in range(12):
            sum(model(torch.ones(4, 8)).square().mean() for model in models).backward()
            if number >= 4:
                held[-1].zero_grad()
            for optimizer in held:
                optimizer.step()
            for optimizer in held:
                optimizer.zero_grad()
        rows = optimizers.answer(it.recorder, {})
        early = {row[1]: row[-2] for row in rows["rows"]}

    assert sorted(early.values()) == [0] * (num_optimizers - 1) + [8]


def test_gradients_that_are_cleared_before_a_backward_are_not_missed(recording):
    """In this order, as in a GAN: one optimizer's gradients are cleared after the other's backward."""
    first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    ours, others = (torch.optim.AdamW(model.parameters()) for model in (first, second))
    search = torch.optim.LBFGS(first.parameters(), max_iter=3)

    def closure():
        search.zero_grad()
        loss = first(torch.ones(4, 8)).square().mean()
        loss.backward()
        return loss

    with recording() as it:
        for _ in range(6):
            ours.zero_grad()
            second(first(torch.ones(4, 8))).square().mean().backward()
            others.zero_grad()
            ours.step()
            second(first(torch.ones(4, 8)).detach()).square().mean().backward()
            others.step()
            search.step(closure)

        assert [noted.early for _, noted in it.recorder.seen.clearings.alive()] == [0, 0, 0]


def test_the_second_gradient_of_sam_is_no_part_of_an_accumulated_one(recording):
    """The first one moves the weights, and is cleared then: it has done its work."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def backward():
        optimizer.zero_grad()
        (model(torch.ones(4, 8)).square().mean() / 2).backward()

    with recording() as it:
        for _ in range(12):
            backward()
            with torch.no_grad():
                moves = [0.05 * one.grad / one.grad.norm() for one in model.parameters()]
                torch._foreach_add_(list(model.parameters()), moves)
            backward()
            with torch.no_grad():
                torch._foreach_sub_(list(model.parameters()), moves)
            time.sleep(0.02)
            optimizer.step()
        ((_, noted),) = it.recorder.seen.clearings.alive()

    assert (noted.early, noted.parts) == (0, 0)


@pytest.mark.parametrize(("by", "parts"), [(4, 18), (1, 0)])
def test_batches_whose_gradients_are_cleared_before_the_step_are_counted(recording, by, parts):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())

    with recording() as it:
        for number in range(28):
            optimizer.zero_grad()
            (model(torch.ones(4, 8)).square().mean() / by if by > 1 else model(torch.ones(4, 8)).sum()).backward()
            if number % 4 == 3:
                time.sleep(0.02)  # the losses of each step are read
                optimizer.step()
        ((_, noted),) = it.recorder.seen.clearings.alive()

    assert (noted.early, noted.parts) == (0, parts)
