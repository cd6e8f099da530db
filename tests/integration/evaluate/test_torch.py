"""Eval against a torch job: obvious candidates, and an unchanged loss curve."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Target

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
Start = Callable[..., Target]


def test_the_obvious_candidate_is_found_and_named(start: Start) -> None:
    target = start(None, "eval_torch.py", "1000000")
    _discard_output(target)

    model = target.eval("sum(p.numel() for p in model.parameters()), type(model).__name__")
    optimizer = target.eval("[round(g['lr'], 5) for g in optimizer.param_groups], trainer.adam is optimizer")
    loader = target.eval("train_loader")
    clipped = target.eval("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) is not None", at_step=True)

    assert model.result == "(577, 'Sequential')", model.traceback
    assert model.notes[0].startswith("model: the outermost nn.Module, local `mlp` of main() at eval_torch.py:")
    assert optimizer.result == "([0.001], True)"
    assert any("optimizer: the only optimizer, attribute `adam` of local `" in note for note in optimizer.notes)
    assert "name 'train_loader' is not defined" in loader.traceback
    assert clipped.result == "True"


def test_read_only_evals_leave_the_loss_curve_as_it_is(start: Start) -> None:
    steps = "800"
    quiet = start(None, "eval_torch.py", steps)
    expected, _ = quiet.finish_by_itself()

    asked = start(None, "eval_torch.py", steps)
    num_answers = 0
    while asked.process.poll() is None and num_answers < 200:
        try:
            answer = asked.eval("[p.sum().item() for p in model.parameters()]", at_step=num_answers % 2 == 1, timeout=5)
        except (OSError, AssertionError):
            break  # it has finished meanwhile
        if answer.state == "failed":
            assert "name 'model' is not defined" in answer.traceback
            asked.process.wait(10)  # its main() was over
            break
        assert answer.state in ("finished", "timed out"), answer.traceback
        num_answers += 1
    losses, err = asked.finish_by_itself()

    assert num_answers > 5
    assert len(losses.splitlines()) == int(steps)
    assert losses == expected
    assert err == ""


def _discard_output(target: Target) -> None:
    """Read its losses, which are not needed, so that they do not fill the pipe."""
    import threading

    assert target.process.stdout is not None
    threading.Thread(target=target.process.stdout.read, daemon=True).start()
