"""The job's own Python takes the step's time."""

from __future__ import annotations

import pytest

from probe_agent.wire import Frame
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.sampling import Stack

from .conftest import Judged, Steps
from .looking import Told, looked

OWN = Frame("next_batch", "/job/train.py", 39, 1, "python", "    random.shuffle(self.pairs)")
SHUFFLES = Stack((Frame("shuffle", "/usr/lib/python3.11/random.py", 361, 0, "python", None), OWN), holds_gil=True)
MULTIPLIES = Stack((Frame("step", "/job/train.py", 50, 0, "python", "    loss = (x @ w).mean()"),), holds_gil=False)
CALLS = Stack(
    (
        Frame("_wrapped_call_impl", "/x/site-packages/torch/nn/modules/module.py", 7, 0, "python", None),
        Frame("step", "/job/train.py", 51, 1, "python", "    loss = model(x)"),
    ),
    holds_gil=True,
)
SUSPECTED = Finding("", Certainty.SUSPECTED, cost_s=0.2, ranks=(0,))


def test_the_line_that_computes_in_python_is_named() -> None:
    told = Told(stacks_of_0=[SHUFFLES] * 8 + [CALLS] * 2, more_stacks_of_0=[SHUFFLES] * 8 + [MULTIPLIES] * 2)

    (found,) = looked("python-bound", told, [SUSPECTED])

    assert found.sentence == "the training thread runs Python code of the job 80 % of the time"
    assert found.where == "next_batch (train.py:39): random.shuffle(self.pairs)"
    assert (found.share, found.cost_s) == (0.8, pytest.approx(0.16))


def test_operators_and_modules_of_torch_are_not_the_jobs_python() -> None:
    torchs = Told(stacks_of_0=[MULTIPLIES] * 6 + [CALLS] * 6, more_stacks_of_0=[])
    some = Told(stacks_of_0=[SHUFFLES] * 4 + [CALLS] * 8, more_stacks_of_0=[CALLS] * 20)

    assert looked("python-bound", torchs, [SUSPECTED]) == []
    assert looked("python-bound", some, [SUSPECTED]) == []


def test_few_steps_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("python-bound", {"python.steps": steps(5)})
