"""Sums that keep autograd graphs, read on the training thread."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from probe_agent.recorder.steps.queue import StepQueue  # noqa: E402
from probe_agent.recorder.steps.running_sums import MAX_NODES, RunningSum, SumReader  # noqa: E402


def read(tensor: object, *, watched: bool = False) -> dict[str, RunningSum]:
    queue = StepQueue()
    reader = SumReader(queue, [(lambda: tensor, "here")], lambda: 7, lambda: watched, lambda name, error: True)
    queue.run_pending()
    return reader.wait(0.0)


def test_additions_are_counted_up_to_another_kind_of_operation() -> None:
    weight = torch.ones(3, requires_grad=True)
    total = sum(((weight + 1).exp().sum() for _ in range(5)), torch.zeros(()))
    mean = torch.zeros(())
    for _ in range(5):
        mean = (weight + 1).exp().sum() * 0.1 + mean * 0.9

    assert len(read(total)["here"].additions) == 5
    assert len(read(mean)["here"].additions) == 5


@pytest.mark.parametrize("at", [torch.tensor([1, 3]), slice(1, 3)])
def test_what_is_written_into_a_part_counts_as_added(at: object) -> None:
    weight = torch.ones(2, requires_grad=True)
    bank = torch.zeros(5)
    for _ in range(5):
        bank[at] = (weight + 1).exp()

    assert len(read(bank)["here"].additions) == 5


def test_a_sum_without_an_end_is_read_from_its_newest_part() -> None:
    weight = torch.ones(3, requires_grad=True)
    total = torch.zeros(())
    for _ in range(MAX_NODES):
        total = total + 2 * weight.sum()
    early = read(total)["here"]
    for _ in range(10):
        total = total + 2 * weight.sum()
    late = read(total)["here"]

    assert MAX_NODES / 3 < len(early.additions) < MAX_NODES
    assert late.since(early) == 10
    assert late.goes_back_to(early)
    assert not RunningSum((max(early.additions) + 1,)).goes_back_to(early)


def test_a_long_sum_leaves_some_of_the_reading_to_the_next() -> None:
    weight = torch.ones(3, requires_grad=True)
    long, short = torch.zeros(()), torch.zeros(())
    for step in range(2 * MAX_NODES):
        long = long + 2 * weight.sum()
        short = short + weight.sum() if step % 100 == 0 else short
    queue = StepQueue()
    places = [(lambda: long, "long"), (lambda: short, "short")]
    reader = SumReader(queue, places, lambda: 7, lambda: False, lambda name, error: True)
    queue.run_pending()

    assert len(reader.wait(0.0)["short"].additions) == 20


@pytest.mark.parametrize("other", [None, 0.5, torch.ones(3, requires_grad=True), torch.ones(3)])
def test_what_is_no_sum_by_then_is_passed_over(other: object) -> None:
    assert read(other) == {}


def test_a_view_that_was_overwritten_is_left_alone() -> None:
    whole = torch.ones(2, requires_grad=True) * 2
    part, _ = whole.unbind()
    whole.add_(1)  # to ask for the node of the part raises

    assert read(part) == {}


def test_a_mode_that_would_see_the_reads_and_a_job_without_steps_are_left_alone() -> None:
    total = torch.ones(3, requires_grad=True).sum() + 1
    queue = StepQueue()

    assert read(total, watched=True) == {}
    assert (
        SumReader(queue, [(lambda: total, "here")], lambda: 7, lambda: False, lambda name, error: True).wait(0.01) == {}
    )
    assert not queue.pending


def test_a_failure_of_ours_stays_out_of_the_job() -> None:
    failed: list[BaseException] = []
    queue = StepQueue()

    def broken() -> bool:
        raise RuntimeError("ours")

    reader = SumReader(
        queue, [(lambda: None, "here")], lambda: 7, broken, lambda name, error: bool(failed.append(error))
    )
    queue.run_pending()

    assert [str(error) for error in failed] == ["ours"]
    assert reader.wait(0.0) == {}
