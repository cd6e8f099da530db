"""Zero interference with torch.compile: attach and detach at any time change nothing that Dynamo does."""

from __future__ import annotations

import warnings
from contextlib import ExitStack, nullcontext

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

STEPS = 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + torch.relu(self.inner(inputs))


def model() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), Block(), Block())


def eager(net):
    return net


def function(net):
    return torch.compile(net, backend="eager")


def fullgraph(net):
    return torch.compile(net, backend="eager", fullgraph=True)


def dynamic(net):
    return torch.compile(net, backend="eager", dynamic=True)


def in_place(net):
    net.compile(backend="eager", fullgraph=True)
    return net


def regional(net):
    for block in net[2:]:
        block.compile(backend="eager", fullgraph=True)
    return net


def regional_wrapped(net):
    net[2], net[3] = (torch.compile(block, backend="eager", fullgraph=True) for block in net[2:])
    return net


def whole_loss(net):
    return torch.compile(lambda inputs: net(inputs).square().mean(), backend="eager", fullgraph=True)


def breaking(net):
    """Break the graph in the middle of a module."""
    inner = net[2].inner
    net[2].inner = nn.Sequential(inner, Breaks())
    return torch.compile(net, backend="eager")


def step_as_well(net):
    return torch.compile(net, backend="eager")


def clips_as_well(net):
    return torch.compile(net, backend="eager")


class Breaks(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return inputs * 2


#: The others are of the same kind as one of these: left to `make test-long`.
OTHERS = [dynamic, in_place, regional_wrapped, whole_loss]
HOW = [eager, function, fullgraph, regional, breaking, step_as_well, clips_as_well]
HOW += [pytest.param(how, marks=pytest.mark.long) for how in OTHERS]


def run(how, recording=None, *, attach=0, detach=3 * STEPS + 1, **settings):
    """Train with the recorder from step `attach` until `detach`; return the result, and Dynamo's counts."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    context = it = None
    losses = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call = None
        for number in range(3 * STEPS):
            if recording is not None and number == attach:
                if attach:
                    net_counters = counted()
                context = recording(keep_dynamo=True, **settings)
                it = context.__enter__()
                if attach:
                    assert counted() == net_counters
            if number == detach and context is not None:
                context.__exit__(None, None, None)
                context = None
            if call is None:
                call = how(net)
                step = stepping(how, net, optimizer)
            inputs = torch.ones(4 + number // STEPS * 3, 8)  # another length each STEPS steps
            optimizer.zero_grad()
            loss = call(inputs).square().mean()
            loss.backward()
            step()
            losses.append(loss.item())
        if context is not None:
            context.__exit__(None, None, None)
    return losses, [tensor.clone() for tensor in net.state_dict().values()], counted(), messages(caught), it


def stepping(how, net, optimizer):
    """Return what the loop calls to update the parameters."""
    if how is clips_as_well:

        def step():
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()

        return torch.compile(step, backend="eager")
    return torch.compile(optimizer.step, backend="eager") if how is step_as_well else optimizer.step


def counted():
    counters = torch._dynamo.utils.counters
    kinds = ("stats", "graph_break", "recompiles", "unimplemented", "frames")
    return {kind: dict(counters[kind]) for kind in kinds if counters[kind]}


def messages(caught):
    return {str(one.message) for one in caught if "is deprecated" not in str(one.message)}


@pytest.fixture(scope="module")
def alone():
    """Return the result of each way of compiling without us, once."""
    known = {}

    def of(how):
        if how not in known:
            known[how] = run(how)
        return known[how]

    return of


@pytest.mark.parametrize("how", HOW, ids=lambda how: how.__name__)
@pytest.mark.parametrize(
    "when",
    [
        # Each with a detach goes as the one without, up to there.
        pytest.param({"attach": 0}, marks=pytest.mark.long),  # before anything is compiled
        {"attach": 0, "detach": 6},
        pytest.param({"attach": 2}, marks=pytest.mark.long),  # after the first compile; more shapes come
        {"attach": 2, "detach": 6},
    ],
    ids=["before", "before, and detached", "after", "after, and detached"],
)
def test_nothing_changes(recording, alone, how, when):
    losses, weights, counters, warned, _ = alone(how)

    seen = run(how, recording, **when, trace_every=2, trace_deep_every=1)

    if how in (
        step_as_well,
        clips_as_well,
    ):  # torch's wrapper around the step looks at its hooks: that frame, without a graph, is anew
        counters, seen = counters["stats"], (*seen[:2], seen[2]["stats"], *seen[3:])
    if how is clips_as_well and set(when) == {"attach", "detach"} and not when["attach"]:
        counters, seen = None, (*seen[:2], None, *seen[3:])  # compiled under the patches, and once more without them
    assert seen[0] == losses
    assert all(torch.equal(one, other) for one, other in zip(weights, seen[1], strict=True))
    assert seen[2] == counters
    assert seen[3] <= warned
    num_steps = when.get("detach", 3 * STEPS) - when["attach"]
    assert num_steps - 2 <= len(seen[4].steps) < num_steps  # an optimizer that is compiled is known one step later


def call_only(how, recording=None, attach=0, detach=3 * STEPS):
    """The same for a loop that only calls its model."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    net = model().eval()
    call = how(net)
    outermost = call if isinstance(call, nn.Module) else net
    outputs, it, counters = [], None, None
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught, ExitStack() as recorded:
        warnings.simplefilter("always")
        for number in range(3 * STEPS + 2):
            if recording is not None and number == attach:
                it = recorded.enter_context(recording(keep_dynamo=True, trace_every=2))
                it.inference.follow(outermost)
            if number == detach:
                recorded.close()
            outputs.append(call(torch.ones(4 + number // STEPS * 3, 8)))
            if number == detach - 1:
                counters = counted()
    assert "__call__" not in vars(nn.Sequential)
    return outputs, counters, counted(), messages(caught), it


@pytest.mark.parametrize("how", [how for how in HOW if how is not step_as_well], ids=lambda how: how.__name__)
@pytest.mark.parametrize(
    "when",
    [*(pytest.param({"attach": at}, marks=pytest.mark.long) for at in (0, 2)), {"attach": 2, "detach": 6}],
    ids=str,
)
def test_nothing_changes_where_nothing_is_trained(recording, how, when):
    outputs, during, after, warned, _ = call_only(how, detach=when.get("detach", 3 * STEPS))

    seen = call_only(how, recording, **when)

    assert all(torch.equal(one, other) for one, other in zip(outputs, seen[0], strict=True))
    assert seen[1:3] == (during, after)
    assert seen[3] <= warned
    if how is not whole_loss:  # there the model is called by what is compiled
        assert len(seen[4].steps) >= when.get("detach", 3 * STEPS) - when["attach"] - 2


def test_a_reset_in_the_middle_of_a_recorded_step_changes_nothing(recording):
    def counts(recording=None):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        call = fullgraph(net)
        context = recording(keep_dynamo=True, trace_every=1, trace_deep_every=1) if recording else nullcontext()
        with context as it:
            for number in range(8):
                optimizer.zero_grad()
                if number in (3, 5):
                    net(torch.ones(4, 8))
                    torch._dynamo.reset()
                call(torch.ones(4, 8)).square().mean().backward()
                optimizer.step()
        call(torch.ones(4, 8))
        return counted(), it

    alone, _ = counts()
    seen, it = counts(recording)

    assert seen == alone
    assert {row["step"] for row in it.trace} == set(range(1, 8))
    assert "clear" not in vars(torch._dynamo.callback.callback_handler)
