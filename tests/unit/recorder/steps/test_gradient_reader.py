"""Gradients are read between steps, on the training thread, or not at all while the job works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from probe_agent.recorder.config import Settings  # noqa: E402
from probe_agent.recorder.operations import modules, parameters, tensor_memory  # noqa: E402
from probe_agent.recorder.source import Recorder  # noqa: E402
from probe_agent.recorder.steps import gradient_reader  # noqa: E402
from probe_agent.recorder.steps.gradient_reader import Gradients  # noqa: E402


@pytest.fixture
def recorder() -> Recorder:
    it = Recorder(Settings({}), lambda name, error: True)
    it.step.thread = threading.get_ident()
    return it


def asked(ask: Callable[[], Any], between_steps: Callable[[], object]) -> Any:
    """Return what a thread of the recorder is told, while this one, which trains, ends steps."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(ask()))
    thread.start()
    while thread.is_alive():
        between_steps()
    return found[0]


def busily(until: float) -> Iterator[None]:
    while time.monotonic() < until:
        sum(range(1000))
        yield


def test_the_training_thread_reads_when_a_step_has_ended(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(4, 2)
    readers: set[int] = set()
    model.weight.grad, model.bias.grad = torch.ones(2, 4), None
    add = Gradients.add
    monkeypatch.setattr(Gradients, "add", lambda it, one: (readers.add(threading.get_ident()), add(it, one)))

    found = asked(recorder.gradients.read, recorder.at_step.run_pending)

    assert found.of(model.weight) == (2 * 4 * 4 / 2**20, 0)
    assert found.of(model.bias) is None
    assert found.is_known(model.bias)
    assert readers == {threading.get_ident()}
    assert found.notes == []


def test_a_step_reads_for_a_millisecond_and_the_next_one_goes_on(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_reader, "BUDGET_NS", 0)
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(5)))
    num_read: list[int] = []

    def step_ends() -> None:
        before = len(added)
        recorder.at_step.run_pending()
        num_read.append(len(added) - before)

    added: list[object] = []
    add = Gradients.add
    monkeypatch.setattr(Gradients, "add", lambda it, one: (added.append(one), add(it, one)))

    found = asked(recorder.gradients.read, step_ends)

    assert all(found.is_known(parameter) for parameter in model.parameters())
    assert max(num_read) == 1


def test_of_a_job_that_works_without_an_end_of_a_step_nothing_is_read(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_reader, "WAIT_S", 0.2)
    monkeypatch.setattr(gradient_reader, "WAIT_LONGER_S", 0.1)
    model = torch.nn.Linear(4, 2)
    model.weight.grad = torch.ones(2, 4)

    answers = asked(lambda: [each.answer(recorder, {}) for each in (parameters, modules, tensor_memory)], busy)

    for operation, answer in zip((parameters, modules, tensor_memory), answers, strict=True):
        rows = [dict(zip(operation.COLUMNS, row, strict=True)) for row in answer["rows"]]
        assert any("gradients were read: no step ended within" in note for note in answer["notes"]), answer
        for row in rows:
            if operation is parameters:
                assert (row["has_gradient"], row["gradient_versions"]) == (None, None)
            elif operation is modules:
                assert (row["gradients"], row["own_gradients"]) == (None, None)
            elif row["kind"] == "gradients":
                assert (row["memory"], row["num_tensors"]) == (None, None)
                assert row["full"] >= 10 * 4 / 2**20  # more where models of other tests live
    assert recorder.at_step.pending == []
    del model


def busy() -> None:
    for _ in busily(time.monotonic() + 0.01):
        pass


def test_of_a_job_that_does_nothing_the_thread_of_the_request_reads(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_reader, "WAIT_S", 0.2)
    monkeypatch.setattr(gradient_reader, "IDLE_SHARE", 0.5)
    model = torch.nn.Linear(4, 2)
    model.weight.grad = torch.ones(2, 4)

    found = asked(recorder.gradients.read, lambda: time.sleep(0.05))

    assert found.of(model.weight) is not None
    assert found.notes == []


def test_the_questions_of_one_command_share_a_look(recorder: Recorder) -> None:
    model = torch.nn.Linear(4, 2)

    first = asked(recorder.gradients.read, recorder.at_step.run_pending)
    second = asked(recorder.gradients.read, lambda: None)

    assert second is first
    assert first.is_known(model.weight)


def test_a_failure_costs_the_answer_and_not_the_job(recorder: Recorder) -> None:
    failures: list[str] = []
    recorder.fail = lambda name, error: bool(failures.append(name))

    class Refusing(torch.Tensor):
        @property
        def grad(self) -> Any:
            raise RuntimeError("not now")

    model = torch.nn.Linear(4, 2)
    model.weight = torch.nn.Parameter(torch.ones(2, 4).as_subclass(Refusing))

    asked(recorder.gradients.read, recorder.at_step.run_pending)

    assert failures == ["gradients"]
