"""The step on which ranks can agree, from their reports."""

from __future__ import annotations

from probe_agent.wire import StepMark, TicketState
from probe_cli.cluster.two_phase.steps import are_comparable, fastest_step_s, newest_step, shifts, step_after
from probe_cli.text import num_ranks, ranks_text


def state(first: int, collectives: list[str | None], step_s: float = 0.1, counted: bool = True) -> TicketState:
    """A rank that ended a step with each of these numbers of collectives, from step `first` on."""
    num = len(collectives)
    marks = [StepMark(first + at, (num - at) * step_s, so_far) for at, so_far in enumerate(collectives)]
    return TicketState(True, "", first + num - 1, "", counted, False, tuple(marks))


def test_ranks_that_count_alike_need_no_shift() -> None:
    assert shifts({0: state(10, ["20", "22", "24"]), 3: state(11, ["22", "24", "26"])}) == {0: 0, 3: 0}


def test_ranks_that_count_from_their_attach_are_aligned_by_collectives() -> None:
    states = {0: state(10, ["20.1", "22.1", "24.1"], counted=False), 1: state(4, ["22.1", "24.1"], counted=False)}

    assert shifts(states) == {0: 0, 1: -7}
    assert newest_step(states, {0: 0, 1: -7}) == 12


def test_no_step_is_agreed_by_ranks_without_a_common_step() -> None:
    assert shifts({0: state(10, ["20", "22"]), 1: state(12, ["24", "26"])}) is None


def test_no_step_is_agreed_by_contradicting_collectives() -> None:
    assert shifts({0: state(10, ["20", "22", "24"]), 1: state(10, ["20", "23", "22"])}) is None


def test_no_step_is_agreed_without_collectives_in_steps() -> None:
    assert shifts({0: state(10, ["20", "20", "20"]), 1: state(10, ["20", "20", "20"])}) is None


def test_without_collectives_there_is_nothing_to_tell_apart() -> None:
    assert shifts({0: state(10, [None, None]), 1: state(12, [None, None])}) == {0: 0, 1: 0}


def test_no_step_is_agreed_before_every_rank_has_two_steps() -> None:
    assert shifts({0: state(10, []), 1: state(12, [])}) is None
    assert shifts({0: state(10, [None, None]), 1: state(12, [None])}) is None


def test_numbers_are_comparable_when_all_come_from_the_optimizer() -> None:
    assert are_comparable({0: state(1, []), 1: state(1, [])})
    assert not are_comparable({0: state(1, []), 1: state(1, [], counted=False)})


def test_the_fastest_rank_sets_the_pace_and_everybody_must_have_shown_one() -> None:
    assert abs((fastest_step_s({0: state(1, ["1", "2"]), 1: state(1, ["1", "2"], 0.05)}) or 0) - 0.05) < 1e-9
    assert fastest_step_s({0: state(1, ["1", "2"]), 1: state(1, ["1"])}) is None


def test_the_step_lies_ahead_by_the_lead_and_never_is_the_one_under_way() -> None:
    assert step_after(100, 2.0, 0.1) == 121
    assert step_after(100, 2.0, 60.0) == 102


def test_many_ranks_in_few_characters() -> None:
    assert ranks_text([5, 3, 0, 1, 2, 9, 10]) == "0-3,5,9-10"
    assert ranks_text(rank for rank in range(64) if rank != 17) == "0-16,18-63"
    assert num_ranks([7]) == "rank 7"
    assert num_ranks([7, 8]) == "2 ranks (7-8)"
