"""Failures of ours become rows; an exception of the job's signal handler inside our code is not ours."""

from __future__ import annotations

import signal

from probe_agent.recorder.guest.failures import MAX_ROWS, Errors, Failures
from probe_agent.recorder.ring.buffer import RowBuffer


def caught(act):
    try:
        act()
    except TimeoutError as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_third_failure_takes_a_source_off():
    failures = Failures(RowBuffer(Errors))

    for _ in range(2):
        failures.record("steps", AttributeError("nothing"))
    assert not failures.given_up
    failures.record("steps", AttributeError("nothing"))

    assert failures.given_up == {"steps"}


def test_a_source_that_fails_at_every_step_does_not_flood_the_table():
    buffer = RowBuffer(Errors)
    failures = Failures(buffer)

    for _ in range(3 * MAX_ROWS):
        failures.record("steps", ZeroDivisionError("x"))

    assert len(buffer.rows) == MAX_ROWS


def test_an_exception_of_the_jobs_signal_handler_is_the_jobs():
    def handler(*_):
        raise TimeoutError("of the job")

    def ours():
        signal.raise_signal(signal.SIGUSR1)

    ours.__code__ = ours.__code__.replace(co_filename="probe_agent/recorder/steps/step.py")
    in_our_module = type(ours)(ours.__code__, {"signal": signal, "__name__": "probe_agent.recorder.steps.step"})
    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        error = caught(in_our_module)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    error.__traceback__ = error.__traceback__.tb_next  # the hook that caught it, and the handler below

    assert Failures(RowBuffer(Errors)).record("steps", error)
