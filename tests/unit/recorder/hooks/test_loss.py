"""`loss` is that of the step, also if it consists of several."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from probe_agent.recorder.hooks import backward  # noqa: E402
from probe_agent.recorder.operations import attentions, loss_graph  # noqa: E402

N = 4


@pytest.fixture(autouse=True)
def every_loss(monkeypatch):
    monkeypatch.setattr(backward, "LOSS_INTERVAL_NS", 0)


def divided(loss, tokens):
    return loss / N


def divided_in_place(loss, tokens):
    loss /= N
    return loss


def multiplied(loss, tokens):
    return 1 / N * loss


def divided_by_a_tensor(loss, tokens):
    return loss / tokens


def divided_with_an_auxiliary_loss(loss, tokens):
    return loss / N + loss.detach() * 0 + loss.square() * 0 / N


def divided_and_checkpointed(loss, tokens):
    return checkpoint(lambda one: one.square().sqrt() / tokens, loss, use_reentrant=False)


def divided_and_converted(loss, tokens):
    return (loss / N).double().reshape(1).squeeze()


def whole(loss, tokens):
    return loss


PARTS = [
    divided,
    divided_in_place,
    multiplied,
    divided_by_a_tensor,
    divided_with_an_auxiliary_loss,
    divided_and_checkpointed,
    divided_and_converted,
]


def train(end, num_steps: int = 4, scaler=None) -> tuple[list[float], list[torch.Tensor]]:
    """Return the job's own loss of each step, and its result."""
    torch.manual_seed(0)
    net, tokens = nn.Linear(8, 1), torch.tensor(N)
    optimizer = torch.optim.AdamW(net.parameters())
    losses = []
    for _ in range(num_steps):
        seen = []
        for _ in range(N):
            loss = net(torch.rand(4, 8)).square().mean()
            seen.append(loss.item())
            loss = end(loss, tokens)
            (loss if scaler is None else scaler.scale(loss)).backward()
        losses.append(sum(seen) / N)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
    return losses, [*net.state_dict().values(), torch.rand(2)]


@pytest.mark.parametrize("is_scaled", [False, True])
@pytest.mark.parametrize("end", [*PARTS, whole], ids=lambda end: end.__name__)
def test_the_loss_of_micro_batches_is_the_steps(recording, end, is_scaled):
    def scaler():
        return torch.amp.GradScaler("cpu", init_scale=4.0) if is_scaled else None

    alone = train(end, scaler=scaler())
    with recording(trace_every=2) as it:
        losses, bits = train(end, scaler=scaler())

    assert [step["loss"] for step in it.steps] == pytest.approx(losses[1:], rel=1e-5)
    assert {step["micro_batches"] for step in it.steps} == {N}
    assert all(torch.equal(one, other) for one, other in zip(alone[1], bits, strict=True))


def test_a_single_loss_is_what_backward_was_called_on(recording):
    net = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses = []
    with recording(trace_every=0) as it:
        for _ in range(4):
            loss = net(torch.ones(4, 8)).square().mean() / 2
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [step["loss"] for step in it.steps] == losses[1:]


def test_losses_whose_gradients_were_cleared_do_not_count(recording):
    net = nn.Linear(8, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    losses: list[float] = []

    def closure():
        optimizer.zero_grad()
        loss = (net(torch.ones(4, 8)) - 1).square().mean()
        losses.append(loss.item())
        loss.backward()
        return loss

    last = []
    with recording(trace_every=0) as it:
        for _ in range(3):
            optimizer.step(closure)
            last.append(losses[-1])
    assert [step["loss"] for step in it.steps] == last[1:]


def test_all_micro_batches_of_a_step_are_read_or_none(recording, monkeypatch):
    num_calls = 0

    def end(loss, tokens):
        nonlocal num_calls
        num_calls += 1
        if num_calls == 5 * N + 2:  # in the middle of the sixth step
            monkeypatch.setattr(backward, "LOSS_INTERVAL_NS", 1_000_000_000_000)
        return loss / N

    with recording(trace_every=0) as it:
        losses, _ = train(end, 12)
    assert [step["loss"] for step in it.steps] == [
        *(pytest.approx(loss, rel=1e-5) for loss in losses[1:6]),
        *[None] * 6,
    ]


def test_a_failure_of_ours_at_the_graph_of_a_loss_stays_out_of_the_job(recording):
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with recording(trace_every=0) as it:
        for step in range(3):
            it.recorder.step.graph_readers = [object()] if step == 1 else []  # cannot note anything
            optimizer.zero_grad()
            net(torch.ones(4, 2)).sum().backward()
            optimizer.step()
        it.recorder.step.graph_readers = []
        assert [row["source"] for row in it.rows("probe.errors")] == ["backward"]
        it.failures._buffer.rows.clear()


@pytest.mark.parametrize("operation", [attentions, loss_graph])
def test_the_gradients_are_those_of_a_backward_whose_graph_nobody_reads(recording, operation):
    net, tokens = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8)), torch.randint(0, 9, (4, 6))
    optimizer = torch.optim.SGD(net.parameters(), 0.0)

    def gradients():
        optimizer.zero_grad()
        hidden = net(tokens)
        attended = nn.functional.scaled_dot_product_attention(hidden, hidden, hidden, is_causal=True)
        attended.square().mean().backward()
        optimizer.step()
        return [parameter.grad.clone() for parameter in net.parameters()]

    alone = gradients()
    with recording(trace_every=0) as it:
        answers = []
        asking = threading.Thread(target=lambda: answers.append(operation.answer(it.recorder, {})))
        asking.start()
        while asking.is_alive():
            assert all(map(torch.equal, alone, gradients()))
        assert it.recorder.step.graph_readers == []
    assert answers[0]["rows"]


@pytest.mark.parametrize(("has_graph", "told"), [(False, 2), (True, 0)])
def test_gradients_that_are_taken_without_a_graph_are_counted_until_the_next_backward(recording, has_graph, told):
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    inputs = torch.ones(2, 4, requires_grad=True)

    def step():
        for _ in range(2):
            torch.autograd.grad(net(inputs).square().sum(), inputs, create_graph=has_graph)
        optimizer.zero_grad()
        net(inputs).sum().backward()
        optimizer.step()

    graph = loss_graph.LossGraph(lambda value: type(value) is torch.Tensor)
    with recording(trace_every=0) as it:
        step()
        it.recorder.step.graph_readers = [graph]
        step()
        it.recorder.step.graph_readers = []
    assert {one.plain_grads for one in graph.operations} == {told}
