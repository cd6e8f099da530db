"""What follows what when our lines are delivered to an interpreter."""

from __future__ import annotations

import itertools

import pytest

from probe_agent.inject.delivery import Event, Stage, State, after
from probe_agent.inject.threads.mailbox import PENDING_CALL, QUIET_THREAD

#: What a stage can come to.
EVENTS = {
    Stage.LOOK: (Event.MAIN_RUNS, Event.MAIN_SLEEPS),
    Stage.TRY: (Event.QUEUED, Event.NOT_SENT),
    Stage.WAIT: (Event.TAKEN, Event.NOT_TAKEN, Event.INTERRUPTED),
}


def run(*events: Event) -> list[tuple[Stage, int]]:
    """Stages and ways from the start on."""
    states = list(itertools.accumulate(events, after, initial=State()))
    return [(state.stage, state.way) for state in states[1:]]


def test_a_running_main_thread_gets_a_pending_call_that_the_target_takes() -> None:
    assert run(Event.MAIN_RUNS, Event.QUEUED, Event.TAKEN) == [
        (Stage.TRY, PENDING_CALL),
        (Stage.WAIT, PENDING_CALL),
        (Stage.TAKEN, PENDING_CALL),
    ]


def test_a_pending_call_that_is_not_run_is_followed_by_a_quiet_thread() -> None:
    stages = run(Event.MAIN_RUNS, Event.QUEUED, Event.NOT_TAKEN, Event.QUEUED, Event.NOT_TAKEN)

    assert stages[2:] == [(Stage.TRY, QUIET_THREAD), (Stage.WAIT, QUIET_THREAD), (Stage.LATE, QUIET_THREAD)]


def test_a_new_thread_that_waits_for_the_gil_is_not_followed_by_a_pending_call() -> None:
    assert run(Event.MAIN_SLEEPS, Event.QUEUED, Event.NOT_TAKEN)[-1] == (Stage.LATE, QUIET_THREAD)


def test_a_main_thread_that_has_woken_up_gets_a_pending_call() -> None:
    assert run(Event.MAIN_SLEEPS, Event.NOT_SENT, Event.QUEUED)[-2:] == [
        (Stage.TRY, PENDING_CALL),
        (Stage.WAIT, PENDING_CALL),
    ]


def test_only_an_attach_that_has_queued_nothing_is_refused() -> None:
    assert run(Event.MAIN_RUNS, Event.NOT_SENT, Event.NOT_SENT)[-1][0] is Stage.REFUSED
    assert run(Event.MAIN_RUNS, Event.QUEUED, Event.NOT_TAKEN, Event.NOT_SENT)[-1][0] is Stage.WAIT


def test_lines_that_a_signal_handler_has_interrupted_are_delivered_anew() -> None:
    events = (Event.MAIN_RUNS, Event.QUEUED, Event.INTERRUPTED)

    assert list(itertools.accumulate(events, after, initial=State()))[-1] == State()


def test_every_stage_knows_what_follows_each_of_its_events_and_no_other() -> None:
    seen, left = {State()}, [State()]
    while left:
        state = left.pop()
        for event in Event:
            if event in EVENTS.get(state.stage, ()):
                following = after(state, event)
                left += [following] if following not in seen else []
                seen.add(following)
            else:
                with pytest.raises(ValueError, match="cannot follow"):
                    after(state, event)

    assert {state.stage for state in seen} == set(Stage)
    assert all(state.is_queued for state in seen if state.stage in (Stage.WAIT, Stage.TAKEN, Stage.LATE))
