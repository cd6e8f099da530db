"""grad_norm of python.steps: the norm that the job takes when it clips its gradients."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_  # by name: imported before the recorder came


def train(norms: list[float], *, norm_type: float = 2.0, clips: bool = True, steps: int = 6) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        time.sleep(0.003)  # the losses of faster steps are not read
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().sum().backward()
        if clips:
            norms.append(clip_grad_norm_(model.parameters(), 0.01, norm_type).item())
        optimizer.step()


def test_it_is_the_norm_before_clipping(recording: Any) -> None:
    norms: list[float] = []

    with recording(trace_every=1, trace_deep_every=1) as it:
        train(norms)

    recorded = [row["grad_norm"] for row in it.steps if row["loss"] is not None]
    assert len(recorded) >= 4
    assert min(norms) > 0.01
    assert all(any(math.isclose(one, norm, rel_tol=1e-6) for norm in norms) for one in recorded)


def test_the_limit_is_recorded_where_the_job_clips(recording: Any) -> None:
    with recording(trace_every=1) as it:
        train([])
    with recording(trace_every=1) as other:
        train([], clips=False)

    assert {row["clip_norm"] for row in it.steps if row["loss"] is not None} == {0.01}
    assert {row["clip_norm"] for row in other.steps} == {None}


def test_a_norm_of_another_kind_is_not_taken(recording: Any) -> None:
    with recording(trace_every=0) as it:
        train([], norm_type=float("inf"))

    assert {row["grad_norm"] for row in it.steps} == {None}


def test_a_job_that_does_not_clip_has_it_in_deep_steps_only(recording: Any) -> None:
    with recording(trace_every=2, trace_deep_every=1) as it:
        train([], clips=False)

    assert [row["grad_norm"] is not None for row in it.steps] == [row["sampled"] for row in it.steps]


def test_detaching_restores_torchs_own_function(recording: Any) -> None:
    from torch.nn.utils import clip_grad

    before = clip_grad._get_total_norm

    with recording():
        assert clip_grad._get_total_norm is not before

    assert clip_grad._get_total_norm is before
