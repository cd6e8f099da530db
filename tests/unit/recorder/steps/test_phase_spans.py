"""The phase of a step at a given moment."""

from __future__ import annotations

import pytest

from probe_agent.recorder.steps.phase_spans import (
    BACKWARD,
    DATA,
    EVALUATION,
    FORWARD,
    GRADIENTS,
    MAX_SPANS,
    OPTIMIZER,
    OTHER,
    PhaseSpans,
)


@pytest.fixture
def spans() -> PhaseSpans:
    """The first step ended at 100, the second at 200."""
    spans = PhaseSpans()
    spans.keep()
    spans.ends.append((100, 6))
    spans.spans += [(110, 120, DATA), (120, 150, FORWARD), (150, 170, BACKWARD), (180, 200, OPTIMIZER)]
    spans.ends.append((200, 7))
    return spans


def test_moments_lie_in_the_phases_of_their_step(spans):
    found = list(spans.phases_at([90, 105, 115, 130, 160, 175, 190]))

    assert [phase for phase, _ in found] == [None, OTHER, DATA, FORWARD, BACKWARD, OTHER, OPTIMIZER]
    assert all(is_final for _, is_final in found)


def test_time_after_the_last_step_is_open_until_a_phase_has_ended(spans):
    spans.spans += [(210, 220, DATA)]
    before = list(spans.phases_at([215, 230]))
    spans.spans += [(220, 240, FORWARD)]

    assert before == [(DATA, False), (None, False)]
    assert list(spans.phases_at([215, 230])) == [(DATA, False), (FORWARD, True)]


def test_a_closure_inside_the_optimizer_has_its_own_phases(spans):
    spans.spans += [(215, 220, FORWARD), (220, 230, BACKWARD), (210, 240, OPTIMIZER)]

    assert [phase for phase, _ in spans.phases_at([212, 217, 225, 235])] == [OPTIMIZER, FORWARD, BACKWARD, OPTIMIZER]


def test_batches_and_gradients_inside_an_evaluation(spans):
    spans.spans += [(215, 220, DATA), (224, 226, BACKWARD), (222, 228, GRADIENTS), (210, 240, EVALUATION)]
    spans.ends.append((300, 8))

    found = [phase for phase, _ in spans.phases_at([212, 217, 223, 225, 227, 235, 250])]

    assert found == [EVALUATION, EVALUATION, OTHER, BACKWARD, OTHER, EVALUATION, OTHER]


def test_a_batch_that_turns_out_to_be_of_an_evaluation(spans):
    spans.spans += [(210, 220, DATA), (240, 250, DATA), (220, 240, EVALUATION), (210, 220, EVALUATION)]
    spans.ends.append((300, 8))

    assert [phase for phase, _ in spans.phases_at([215, 245])] == [EVALUATION, DATA]
    assert [phase for phase, _ in spans.phases_at([230])] == [EVALUATION]


def test_a_moment_too_long_ago_is_not_known(spans):
    spans.spans += [(200 + at, 201 + at, FORWARD) for at in range(MAX_SPANS)]

    assert next(iter(spans.phases_at([130]))) == (None, True)


def test_the_step_of_a_moment_is_the_one_that_ended_next(spans):
    assert [spans.step_at(when, 8) for when in (90, 100, 101, 200, 201)] == [6, 6, 7, 7, 8]


def test_nothing_is_kept_unless_requested():
    spans = PhaseSpans()
    spans.spans.append((1, 2, DATA))
    spans.ends.append((3, 0))

    assert list(spans.phases_at([1])) == [(None, True)]
    assert spans.step_at(1, 5) == 5
