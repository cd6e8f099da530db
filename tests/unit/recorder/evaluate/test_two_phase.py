"""One rank with held code: it runs after the agreed step, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from probe_agent.recorder.evaluate.two_phase import Ticket
from probe_agent.recorder.steps.queue import StepQueue
from probe_agent.recorder.steps.step import Step


class Code:
    """Stand-in for an evaluation."""

    def __init__(self) -> None:
        self.started = 0.0
        self.num_runs = 0

    def run(self) -> None:
        self.started = 1.0
        self.num_runs += 1


class Rank:
    """A training thread that has ended step 9, and holds code."""

    def __init__(self) -> None:
        self.code: Any = Code()
        self.step = Step()
        self.step.thread, self.step.number = 1, 10
        self.queue = StepQueue()
        self.errors: list[BaseException] = []
        self.ticket = Ticket(self.code, self.step, self.queue, lambda _, error: self.errors.append(error))
        self.queue.submit(self.ticket)

    def end_steps(self, num: int) -> None:
        for _ in range(num):
            self.step.number += 1
            self.queue.run_pending()

    def does(self, do: str, step: int | None = None) -> bool:
        return bool(self.ticket.answer(do, step)["ok"])


@pytest.fixture
def rank() -> Rank:
    return Rank()


def test_it_runs_once_when_the_agreed_step_has_ended(rank: Rank) -> None:
    assert rank.does("arm", 12)
    assert rank.does("go", 12)

    rank.end_steps(2)
    before = rank.code.num_runs
    rank.end_steps(3)

    assert (before, rank.code.num_runs) == (0, 1)
    assert rank.step.number - 1 == 14
    assert not rank.queue.pending


def test_armed_without_go_it_runs_nothing_and_is_ready_for_a_later_step(rank: Rank) -> None:
    rank.does("arm", 11)
    rank.end_steps(3)

    assert not rank.does("go", 11)
    assert rank.does("arm", 14)
    assert rank.does("go", 14)
    rank.end_steps(2)
    assert rank.code.num_runs == 1


def test_it_cannot_be_armed_for_a_step_that_has_ended(rank: Rank) -> None:
    assert not rank.does("arm", 9)
    assert "step 9 has ended" in str(rank.ticket.answer("arm", 9)["why"])
    assert rank.does("arm", 10)


def test_go_counts_only_for_the_step_it_is_armed_for(rank: Rank) -> None:
    assert not rank.does("go", 12)
    rank.does("arm", 12)
    assert not rank.does("go", 13)


def test_go_can_be_taken_back_until_the_step_has_ended(rank: Rank) -> None:
    rank.does("arm", 11)
    rank.does("go", 11)
    assert rank.does("revoke", 11)
    rank.end_steps(3)
    assert rank.code.num_runs == 0

    rank.does("arm", 14)
    rank.does("go", 14)
    rank.end_steps(2)
    assert not rank.does("revoke", 14)
    assert rank.code.num_runs == 1


def test_leaving_before_the_commit_drops_the_code_and_leaving_later_does_not(rank: Rank) -> None:
    rank.does("arm", 11)
    rank.does("go", 11)
    assert not rank.ticket.withdraw()
    rank.end_steps(2)
    assert rank.code.num_runs == 1

    other = Rank()
    other.does("arm", 11)
    assert other.ticket.withdraw()
    assert not other.does("go", 11)
    assert not other.does("arm", 13)
    other.end_steps(3)
    assert other.code.num_runs == 0
    assert not other.queue.pending


def test_a_recorder_that_leaves_takes_even_a_go_back(rank: Rank) -> None:
    rank.does("arm", 11)
    rank.does("go", 11)
    rank.queue.closed = True

    assert rank.ticket.withdraw()
    rank.end_steps(3)

    assert rank.code.num_runs == 0
    assert not rank.queue.pending


def test_a_look_tells_the_steps_that_have_ended_meanwhile(rank: Rank) -> None:
    rank.end_steps(2)

    state = rank.ticket.answer("look", None)

    assert (state["step"], state["counted"], state["started"]) == (11, False, False)
    assert [mark["step"] for mark in state["marks"]] == [10, 11]  # type: ignore[attr-defined]


def test_our_own_failure_stays_with_us_and_breaks_no_agreement(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe_agent.recorder.evaluate.two_phase.collectives_so_far", lambda: 1 / 0)
    rank.does("arm", 11)
    rank.does("go", 11)

    rank.end_steps(2)

    assert [type(error) for error in rank.errors] == [ZeroDivisionError] * 2
    assert rank.code.num_runs == 1
