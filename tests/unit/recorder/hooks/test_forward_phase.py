"""`forward` of python.steps: in every step, sampled or not, from the last event before it to the start of backward.

The programs sleep for known times in the forward and beside it; only the forward may be in it.
"""

from __future__ import annotations

import time
from io import BytesIO
from itertools import chain

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

FORWARD_S, LOSS_S, OTHER_S = 0.006, 0.004, 0.03
STEPS = 7
#: By how much a busy machine may lengthen the best of a loop's steps.
SLACK_S = 0.012


class Slow(nn.Module):
    def __init__(self, seconds: float = FORWARD_S) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return self.inner(x)


def loss_of(out):
    time.sleep(LOSS_S)
    return out.square().mean()


def batches():
    return DataLoader(TensorDataset(torch.ones(4 * STEPS, 4)), batch_size=4)


def log() -> None:
    time.sleep(OTHER_S)


def zero_grad_first(net, optimizer) -> None:
    for (x,) in batches():
        optimizer.zero_grad()
        loss_of(net(x)).backward()
        optimizer.step()
        log()


def zero_grad_before_backward(net, optimizer) -> None:
    for (x,) in batches():
        loss = loss_of(net(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log()


def zero_grad_last(net, optimizer) -> None:
    for (x,) in batches():
        loss_of(net(x)).backward()
        optimizer.step()
        optimizer.zero_grad()
        log()


def batch_fetched_before_backward(net, optimizer) -> None:
    """Fetch the next one while a device computes."""
    coming = iter(batches())
    (x,) = next(coming)
    for _ in range(STEPS - 1):
        loss = loss_of(net(x))
        (x,) = next(coming)
        loss.backward()
        optimizer.step()


def without_a_loader(net, optimizer) -> None:
    for _ in range(STEPS):
        time.sleep(OTHER_S)  # makes a batch
        optimizer.zero_grad()
        loss_of(net(torch.ones(4, 4))).backward()
        optimizer.step()


class SlowToSave:
    def __reduce__(self):
        time.sleep(OTHER_S)
        return SlowToSave, ()


def with_checkpoints(net, optimizer) -> None:
    for _ in range(STEPS):
        loss_of(net(torch.ones(4, 4))).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.save({"model": net.state_dict(), "extra": SlowToSave()}, BytesIO())


def with_an_evaluation_first(net, optimizer) -> None:
    for number in range(STEPS):
        optimizer.zero_grad()
        if number % 2:
            with torch.no_grad():
                for (x,) in batches():
                    net(x)
        loss_of(net(torch.ones(4, 4))).backward()
        optimizer.step()


def with_a_teacher(net, optimizer) -> None:
    teacher = Slow(OTHER_S)
    for (x,) in batches():
        out = net(x)
        with torch.no_grad():
            teacher(x)
        optimizer.zero_grad()
        loss_of(out).backward()
        optimizer.step()


ONE_FORWARD = [
    zero_grad_first,
    zero_grad_before_backward,
    zero_grad_last,
    batch_fetched_before_backward,
    without_a_loader,
    with_checkpoints,
    with_an_evaluation_first,
    with_a_teacher,
]


def assert_phases_add_up(step) -> None:
    names = ("data_wait", "forward", "backward", "optimizer", "evaluation", "generation", "other")
    phases = [step[name] or 0.0 for name in names]
    assert min(phases) >= -1e-9
    assert sum(phases) == pytest.approx(step["duration"], rel=1e-6)


def assert_forward(steps, num: int = 1) -> None:
    """Check that each holds that many forwards with their losses, and the best of them no more."""
    forwards = [step["forward"] for step in steps]
    assert min(forwards) >= num * (FORWARD_S + LOSS_S)
    assert min(forwards) < num * (FORWARD_S + LOSS_S + SLACK_S)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("loop", ONE_FORWARD, ids=lambda loop: loop.__name__)
def test_it_is_the_same_in_every_step_of_every_loop(recording, loop, every):
    net = Slow()
    with recording(trace_every=every) as it:
        loop(net, torch.optim.SGD(net.parameters(), 0.1))

    for step in it.steps:
        assert_phases_add_up(step)
    learned = it.steps[every:]  # a sampled step has shown where the loop clears its gradients and gets its batches
    assert_forward(learned)
    for step in it.steps:  # until then it may hold what comes between, but never lacks the forward
        if loop is not batch_fetched_before_backward:
            assert step["forward"] >= FORWARD_S + LOSS_S


def test_a_file_that_is_read_in_the_forward_is_part_of_it(recording):
    class Reads(Slow):
        def forward(self, x):
            out = super().forward(x)
            table.seek(0)
            return out * torch.load(table)["scale"]

    net, table = Reads(), BytesIO()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    torch.save({"scale": torch.ones(1)}, table)
    with recording(trace_every=2) as it:
        for _ in range(STEPS):
            loss_of(net(torch.ones(4, 4))).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert min(step["forward"] for step in it.steps[2:]) >= FORWARD_S + LOSS_S


def test_micro_batches_have_their_forwards_together(recording):
    net = Slow()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    coming = chain(batches(), batches())
    with recording(trace_every=2) as it:
        for _ in range(STEPS):
            for _ in range(2):
                (x,) = next(coming)
                loss_of(net(x)).backward()
            optimizer.step()
            optimizer.zero_grad()
            log()

    for step in it.steps:
        assert_phases_add_up(step)
    assert_forward(it.steps, 2)


def test_both_nets_of_a_gan_are_in_it(recording):
    maker, judge = Slow(), Slow()
    first, second = (torch.optim.SGD(net.parameters(), 0.1) for net in (judge, maker))
    with recording(trace_every=2) as it:
        for (x,) in batches():
            for net, optimizer in ((judge, first), (maker, second)):
                optimizer.zero_grad()
                loss_of(net(x)).backward()
                optimizer.step()
            log()

    for step in it.steps:
        assert_phases_add_up(step)
    assert_forward(it.steps, 2)


def test_work_of_lbfgs_between_its_closures_is_optimizer_time(recording):
    net = Slow(0.002)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3, tolerance_grad=0.0, tolerance_change=0.0, lr=1e-3)
    own, took = [], [0.0]

    def closure():
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of(net(torch.ones(4, 4)))
        loss.backward()
        took[0] += time.perf_counter() - began
        return loss

    with recording(trace_every=2) as it:
        for _ in range(4):
            took[0] = 0.0
            began = time.perf_counter()
            optimizer.step(closure)
            own.append(time.perf_counter() - began - took[0])

    for step, rest in zip(it.steps, own[1:], strict=True):
        assert_phases_add_up(step)
        assert step["forward"] >= step["micro_batches"] * (0.002 + LOSS_S)
        assert step["optimizer"] <= rest + SLACK_S
        assert step["other"] <= SLACK_S


def test_forwards_without_a_backward_are_those_of_the_modules(recording):
    net = Slow()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net.inner.weight.grad = torch.zeros(1, 4)
    with recording(trace_every=1) as it:
        for _ in range(3):
            net(torch.ones(4, 4))
            optimizer.step()

    assert all(step["forward"] >= FORWARD_S for step in it.steps)
    assert {step["backward"] for step in it.steps} == {None}
