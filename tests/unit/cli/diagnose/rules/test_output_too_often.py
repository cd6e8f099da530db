"""The training thread prints, logs or writes files for much of its time."""

from __future__ import annotations

import pytest

from probe_agent.wire import Frame
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.sampling import Stack

from .conftest import Judged, Steps
from .looking import Told, looked

LOGS = Stack(
    (
        Frame("emit", "/usr/lib/python3.11/logging/__init__.py", 1103, 0, "python", "self.stream.write(msg)"),
        Frame("train", "/job/train.py", 88, 1, "python", "    log.info(loss)"),
    )
)
PRINTS = Stack((Frame("train", "/job/train.py", 90, 0, "python", "    print(step)"),))
TRAINS = Stack(
    (
        Frame("linear", "/x/site-packages/torch/nn/functional.py", 7, 0, "python", "return linear(input)"),
        Frame("train", "/job/train.py", 80, 1, "python", "    print(model(inputs))"),
    )
)
PRINTS_A_TENSOR = Stack(
    (
        Frame("__init__", "/x/site-packages/torch/_tensor_str.py", 139, 0, "python", "value_str = f'{value.item()}'"),
        Frame("__repr__", "/x/site-packages/torch/_tensor.py", 590, 1, "python", "return torch._tensor_str._str(self)"),
        Frame("train", "/job/train.py", 92, 2, "python", "    print(logits)"),
    )
)
LOGS_A_METRIC = Stack(
    (
        Frame("compute", "/x/site-packages/torchmetrics/functional/roc.py", 46, 0, "python", "return preds.sort()"),
        Frame("training_step", "/job/train.py", 87, 1, "python", "    self.log('auc', self.auc.compute())"),
    )
)
SUSPECTED = Finding("", Certainty.SUSPECTED, cost_s=0.1, ranks=(0,))


def test_the_lines_that_print_are_named_with_their_share() -> None:
    (found,) = looked(
        "output-too-often", Told(stacks_of_0=[LOGS] * 4 + [PRINTS] * 2 + [TRAINS] * 6, more_stacks_of_0=[]), [SUSPECTED]
    )

    assert found.share == 0.5
    assert found.where == "train (train.py:88): log.info(loss)"
    assert any("17 % of the stacks: train (train.py:90): print(step)" in text for text in found.evidence)


def test_a_metric_that_is_computed_for_a_log_is_no_output() -> None:
    told = Told(stacks_of_0=[LOGS_A_METRIC] * 11 + [TRAINS], more_stacks_of_0=[])

    assert looked("output-too-often", told, [SUSPECTED]) == []


def test_a_tensor_that_is_printed_is_output_and_no_value_that_is_read() -> None:
    told = Told(stacks_of_0=[PRINTS_A_TENSOR] * 6 + [TRAINS] * 6, more_stacks_of_0=[])

    (found,) = looked("output-too-often", told, [SUSPECTED])

    assert found.where == "train (train.py:92): print(logits)"
    assert looked("values-read-back", told, [SUSPECTED]) == []


def test_a_line_now_and_then_is_no_finding_and_a_thread_that_was_not_seen_no_evidence() -> None:
    assert (
        looked(
            "output-too-often", Told(stacks_of_0=[LOGS] + [TRAINS] * 11, more_stacks_of_0=[TRAINS] * 20), [SUSPECTED]
        )
        == []
    )
    with pytest.raises(NoEvidence, match="could not be read"):
        looked("output-too-often", Told(stacks_of_0=[]), [SUSPECTED])


def test_steps_that_are_all_backward_are_not_looked_at(judged: Judged, steps: Steps) -> None:
    assert judged("output-too-often", {"python.steps": steps(50, forward=0.001, backward=0.09)}) == []


def test_few_steps_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("output-too-often", {"python.steps": steps(5)})


def test_a_logarithm_is_no_log() -> None:
    """Found in a program that computes spectrograms."""
    logarithm = Stack((Frame("get", "/job/train.py", 21, 0, "python", "    spec = x.abs().clamp_min(1e-4).log()"),))
    records = Stack((Frame("train", "/job/train.py", 22, 0, "python", "    wandb.log({'loss': loss})"),))

    def told(stack: Stack) -> Told:
        return Told(stacks_of_0=[stack] * 12, more_stacks_of_0=[])

    assert looked("output-too-often", told(logarithm), [SUSPECTED]) == []
    assert looked("output-too-often", told(records), [SUSPECTED])
