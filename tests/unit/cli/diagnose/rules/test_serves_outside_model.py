"""A server that works beside its model."""

from __future__ import annotations

import pytest

from probe_agent.wire import Frame
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.sampling import Stack

from .conftest import Judged, Steps
from .looking import Told, looked

OWN = Frame("overlap", "/job/serve.py", 53, 1, "python", "    area = (high - low).clamp(min=0).prod()")
COMPARES = Stack((OWN,), holds_gil=False, state="running")
CALLS = Stack(
    (
        Frame("_wrapped_call_impl", "/x/site-packages/torch/nn/modules/module.py", 7, 0, "python", None),
        Frame("turn", "/job/serve.py", 80, 1, "python", "    boxes = self.model(batch)"),
    ),
    state="running",
)
WAITS = Stack((Frame("next", "/job/serve.py", 70, 1, "python", "    item = inbox.get(timeout=1)"),), state="sleeping")
SUSPECTED = Finding("", Certainty.SUSPECTED, cost_s=0.02, ranks=(0,))


def test_the_line_beside_the_model_is_named() -> None:
    told = Told(stacks_of_0=[COMPARES] * 8 + [CALLS] * 2, more_stacks_of_0=[COMPARES] * 9 + [CALLS])

    (found,) = looked("serves-outside-model", told, [SUSPECTED])

    assert found.sentence == "the server works outside of the model 85 % of the time"
    assert found.where.startswith("overlap (serve.py:53)")


def test_a_server_that_waits_or_is_in_its_model_is_fine() -> None:
    told = Told(stacks_of_0=[WAITS] * 6 + [CALLS] * 6, more_stacks_of_0=[])

    assert looked("serves-outside-model", told, [SUSPECTED]) == []


def test_only_calls_of_a_model_that_take_little_of_the_time_are_suspected(judged: Judged, steps: Steps) -> None:
    little = {"python.steps": steps(100, forward=0.01, backward=0.0, optimizer=0.0, duration=0.1)}
    most = {"python.steps": steps(100, forward=0.08, backward=0.0, optimizer=0.0, duration=0.1)}

    assert [one.certainty for one in judged("serves-outside-model", little)] == [Certainty.SUSPECTED]
    assert judged("serves-outside-model", most) == []


def test_a_job_that_trains_and_few_calls_are_not_judged(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("serves-outside-model", {"python.steps": steps(100, forward=0.01, backward=0.02)})
    with pytest.raises(NotApplicable):  # evolution
        judged("serves-outside-model", {"python.steps": steps(100, forward=0.01, backward=0.0, optimizer=0.001)})
    with pytest.raises(NoEvidence):
        judged("serves-outside-model", {"python.steps": steps(5, forward=0.01, backward=0.0, optimizer=0.0)})


def test_a_rank_that_acts_for_one_that_learns_is_no_server(judged: Judged, steps: Steps) -> None:
    acts = {"python.steps": steps(100, forward=0.01, backward=0.0, optimizer=0.0)}

    with pytest.raises(NotApplicable):
        judged("serves-outside-model", {"python.steps": steps(100)}, acts)
