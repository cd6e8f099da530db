"""Backward rows of python.torch_trace: the time of each call's own operators, in the run of the engine it belongs to.

Modules sleep in their backward and measure it with their own clock. Each kind of loop checks that a row holds what its
module measured, and that the rows of a step take no longer than the step's backward.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import time
import weakref
from collections import Counter, OrderedDict
from types import FunctionType

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from probe_agent.recorder.hooks import modules  # noqa: E402

SECONDS = 0.004
#: By how much a window may be longer than what the module measured in it.
SLACK = 0.003


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        return x * 1.0

    @staticmethod
    def backward(ctx, gradient):
        began = time.perf_counter()
        time.sleep(ctx.module.seconds)
        ctx.module.took.append(time.perf_counter() - began)
        return gradient * 1.0, None


class Layer(nn.Module):
    """Sleep in the backward."""

    def __init__(self, seconds: float = SECONDS) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.seconds = seconds
        self.took: list[float] = []

    def forward(self, x):
        return Slow.apply(x * self.weight, self)


class Judge(Layer):
    pass


class Maker(Layer):
    pass


class Loss(nn.Module):
    def forward(self, out, target):
        return (out - target).square().mean()


@dataclasses.dataclass
class Named:
    text: str
    out: torch.Tensor


class Gives(nn.Module):
    """A layer with its output inside a container."""

    def __init__(self, wrap) -> None:
        super().__init__()
        self.layer = Layer()
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(self.layer(x))


def backward_rows(it, step):
    return [row for row in it.trace if row["step"] == step and row["stage"] == "backward"]


def assert_within_the_phase(it) -> None:
    for step in it.steps:
        own = [row["self_duration"] for row in backward_rows(it, step["step"])]
        assert min(own, default=0.0) >= 0.0
        assert sum(own) <= (step["backward"] or 0.0) + 1e-9


def assert_rows(rows, took: list[float]) -> None:
    """Check that each holds what its module measured; a busy machine makes some longer, not all of them."""
    assert len(rows) == len(took)
    excess = [row["duration"] - known for row, known in zip(rows, took, strict=True)]
    assert min(excess) >= 0.0
    assert sorted(excess)[len(excess) // 3] < SLACK


def rows_of(it, module):
    return [row for row in it.trace if row["module"] == module and row["stage"] == "backward"]


DEEP = pytest.mark.parametrize("deep_every", [0, 1], ids=["outermost", "deep"])


@DEEP
def test_each_micro_batch_has_its_own_backward(recording, deep_every):
    net, loss = nn.Sequential(Layer(), nn.Linear(8, 8)), Loss()
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    with recording(trace_every=1, trace_deep_every=deep_every) as it:
        for _ in range(3):
            for _ in range(4):
                loss(net(torch.ones(4, 8)), torch.zeros(4, 8)).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert_within_the_phase(it)
    assert_rows(rows_of(it, "Sequential"), net[0].took[4:])
    names = [(row["module"], row["stage"]) for row in it.trace if row["step"] == 2]
    assert names.index(("Sequential", "backward")) < len(names) / 4  # in the order in which they ended


@DEEP
def test_a_loss_module_has_the_time_of_its_own_operators(recording, deep_every):
    net, loss = Layer(), nn.BCELoss()
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    with recording(trace_every=1, trace_deep_every=deep_every) as it:
        for _ in range(3):
            out = torch.sigmoid(net(torch.ones(4, 8))).view(-1)  # between the two: it belongs to neither
            loss(out, torch.ones(32)).backward()
            optimizer.step()

    assert_within_the_phase(it)
    assert min(row["duration"] for row in rows_of(it, "BCELoss")) < SECONDS / 2
    assert_rows(rows_of(it, "Layer"), net.took[1:])


@pytest.mark.parametrize("every", [1, 3])  # of these step 4 is sampled, and 3 with the first
@DEEP
def test_the_two_nets_of_a_gan_have_their_own_time(recording, every, deep_every):
    """The maker's forward lies in the step before its backward; where that was not recorded it has no row."""
    maker, judge, loss = Maker(), Judge(2 * SECONDS), nn.BCEWithLogitsLoss()
    first, second = (torch.optim.SGD(net.parameters(), 0.0) for net in (judge, maker))
    with recording(trace_every=every, trace_deep_every=deep_every) as it:
        for _ in range(5):
            loss(judge(torch.ones(4, 8)), torch.ones(4, 8)).backward()
            fake = maker(torch.ones(4, 8))
            loss(judge(fake.detach()), torch.zeros(4, 8)).backward()
            first.step()
            loss(judge(fake), torch.ones(4, 8)).backward()
            second.step()

    assert_within_the_phase(it)
    rows = backward_rows(it, 4)
    makers = 1 if every == 1 else 0
    assert Counter(row["module"] for row in rows) == {
        "BCEWithLogitsLoss": 3, "Judge": 3, **({"Maker": 1} if makers else {})
    }  # fmt: skip
    if makers:
        assert_rows(rows_of(it, "Judge"), judge.took[2:-1])  # a step ends before the maker's turn
        assert_rows(rows_of(it, "Maker"), maker.took[1:-1])  # the first forward was before the first whole step
    assert min(row["duration"] for row in rows_of(it, "BCEWithLogitsLoss")) < SECONDS / 2


@DEEP
def test_a_module_that_is_called_twice_in_one_forward_has_two_rows(recording, deep_every):
    shared = Layer()
    optimizer = torch.optim.SGD(shared.parameters(), 0.0)
    with recording(trace_every=1, trace_deep_every=deep_every) as it:
        for _ in range(3):
            shared(shared(torch.ones(4, 8)) * 2.0).sum().backward()
            optimizer.step()

    assert_within_the_phase(it)
    assert_rows(rows_of(it, "Layer"), shared.took[2:])


@DEEP
def test_a_graph_that_is_gone_through_twice_has_two_rows_a_call(recording, deep_every):
    net = Layer()
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    with recording(trace_every=1, trace_deep_every=deep_every) as it:
        for _ in range(3):
            one, other = net(torch.ones(2, 8)).unbind()
            one.sum().backward(retain_graph=True)
            time.sleep(5 * SECONDS)  # between the two runs: it belongs to nobody
            other.sum().backward()
            optimizer.step()

    assert_within_the_phase(it)
    assert_rows(rows_of(it, "Layer"), net.took[2:])


def test_gradients_of_gradients_are_backward_too(recording):
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    took = []
    with recording(trace_every=1, trace_deep_every=1) as it:
        for _ in range(3):
            x = torch.ones(4, 8, requires_grad=True)
            out = net(x)
            began = time.perf_counter()
            (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            took.append(time.perf_counter() - began)
            gradient.norm().backward()
            optimizer.step()

    assert_within_the_phase(it)
    assert [step["micro_batches"] for step in it.steps] == [1, 1]
    assert [row["module"] for row in backward_rows(it, 2)].count("Sequential") == 2
    assert all(row["self_duration"] >= 0.0 for row in backward_rows(it, 2))


@DEEP
def test_the_closures_of_lbfgs_have_a_row_each(recording, deep_every):
    net = Layer()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4, tolerance_grad=0.0, tolerance_change=0.0, lr=1e-4)

    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(4, 8)).square().sum()
        loss.backward()
        return loss

    with recording(trace_every=1, trace_deep_every=deep_every) as it:
        for _ in range(3):
            optimizer.step(closure)

    assert_within_the_phase(it)
    rows = rows_of(it, "Layer")
    assert len(rows) == sum(step["micro_batches"] for step in it.steps) > 2
    assert_rows(rows, net.took[-len(rows) :])


#: How an output is wrapped, and got at again.
WRAPS = {
    "tuple": (lambda out: (None, out), lambda given: given[1]),
    "nested tuple": (lambda out: ([1, (out, out * 2.0)],), lambda given: given[0][1][0]),
    "dataclass": (lambda out: Named("a loss", out), lambda given: given.out),
    "ordered dictionary": (lambda out: OrderedDict(loss=None, logits=out), lambda given: given["logits"]),
}


@pytest.mark.parametrize("kind", WRAPS)
@DEEP
def test_outputs_of_every_kind_have_a_backward(recording, kind, deep_every):
    wrap, unwrapped = WRAPS[kind]
    net = Gives(wrap)
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    with recording(trace_every=1, trace_deep_every=deep_every) as it:
        for _ in range(3):
            unwrapped(net(torch.ones(4, 8))).sum().backward()
            optimizer.step()

    assert_within_the_phase(it)
    assert_rows(rows_of(it, "Gives"), net.layer.took[1:])
    assert len(rows_of(it, "Gives.layer")) == 2 * deep_every


def test_changes_in_place_and_empty_modules_take_no_others_time(recording):
    net = nn.Sequential(Layer(), nn.ReLU(inplace=True), nn.Identity(), nn.Dropout(0.0), nn.Flatten(), Layer())
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    with recording(trace_every=1, trace_deep_every=1) as it:
        for _ in range(3):
            net(torch.ones(4, 8)).sum().backward()
            optimizer.step()

    assert_within_the_phase(it)
    assert_rows(rows_of(it, "Sequential.5"), net[5].took[1:])
    assert_rows(rows_of(it, "Sequential.0"), net[0].took[1:])
    assert min(row["duration"] for row in rows_of(it, "Sequential.1")) < SECONDS / 2
    assert not rows_of(it, "Sequential.2")  # it has made nothing that could have a backward


def test_a_call_without_a_gradient_has_no_row(recording):
    used, unused = Judge(), Maker()
    optimizer = torch.optim.SGD(used.parameters(), 0.0)
    with recording(trace_every=1, trace_deep_every=1) as it:
        for _ in range(3):
            unused(torch.ones(4, 8))
            used(torch.ones(4, 8)).sum().backward()
            optimizer.step()

    assert {row["module"] for row in it.trace if row["stage"] == "backward"} == {"Judge"}


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_checkpointed_layers_take_their_time_once(recording, reentrant):
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Layer(), Layer()])

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return x

    net = nn.Sequential(nn.Linear(8, 8), Checkpointed())
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    with recording(trace_every=1, trace_deep_every=1) as it:
        for _ in range(3):
            net(torch.ones(4, 8)).sum().backward()
            optimizer.step()

    assert_within_the_phase(it)
    for number, layer in enumerate(net[1].layers):
        assert_rows(rows_of(it, f"Sequential.1.layers.{number}"), layer.took[1:])
    assert min(row["self_duration"] for row in rows_of(it, "Sequential.0")) < SECONDS / 2


def test_a_view_that_has_lost_its_gradient_is_left_alone(recording):
    class First(nn.Module):
        def forward(self, parts):
            return parts[0].detach() * 2.0

    net, last = First(), nn.Linear(8, 8)
    optimizer = torch.optim.SGD(last.parameters(), 0.0)
    with recording(trace_every=1, trace_deep_every=1) as it:
        for _ in range(3):
            parts = (torch.ones(2, 8, requires_grad=True) * 1.0).unbind()
            with torch.no_grad():
                parts[0].mul_(2.0)
            last(net(parts)).sum().backward()
            optimizer.step()

    assert len(it.steps) == 2


def test_a_graph_is_freed_as_ever_and_one_that_is_kept_tells_nothing_after_detach(recording):
    net = nn.Sequential(Layer(0.0), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    with recording(trace_every=1, trace_deep_every=1) as it:
        for _ in range(2):
            net(torch.ones(4, 8)).sum().backward()
            optimizer.step()
        kept = net(torch.ones(4, 8)).sum()
        gone = weakref.ref(net(torch.ones(4, 8)))
    step = it.recorder.step
    step.module_events.clear()
    step.in_backward = True  # even if the job goes through it in a step that we take for a recorded one
    kept.backward()

    assert gone() is None
    assert step.sampled
    assert not step.module_events


def test_a_job_that_keeps_its_losses_does_not_keep_us(recording):
    """A job that never clears its list of losses keeps the graph of every step."""
    layer, losses = Layer(0.0), []
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with recording(trace_every=1, trace_deep_every=1) as it:
        for _ in range(5):
            losses.append(layer(torch.ones(4)).sum())
            losses[-1].backward()
            optimizer.step()
    del it
    gc.collect()
    ours = [one for one in gc.get_objects() if type(one) is FunctionType and one.__module__ == modules.__name__]

    assert len(losses) == 5
    assert [one.__qualname__ for one in ours if "<locals>" in one.__qualname__] == []


def test_the_numbers_are_those_of_a_run_without_us(recording):
    def run():
        torch.manual_seed(5)
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 2))
        optimizer, loss = torch.optim.AdamW(net.parameters()), nn.CrossEntropyLoss()
        for _ in range(6):
            optimizer.zero_grad()
            for _ in range(2):
                out = checkpoint(functools.partial(net), torch.randn(4, 8, requires_grad=True), use_reentrant=True)
                loss(out, torch.zeros(4, dtype=torch.long)).backward()
            optimizer.step()
        return [parameter.clone() for parameter in net.parameters()], torch.rand(1)

    alone = run()
    with recording(trace_every=1, trace_deep_every=1) as it:
        watched = run()

    assert_within_the_phase(it)
    assert all(torch.equal(one, other) for one, other in zip(alone[0], watched[0], strict=True))
    assert torch.equal(alone[1], watched[1])
