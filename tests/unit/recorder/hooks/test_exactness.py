"""Recorded rows against what the modules measure themselves: their own clock, their own memory, their own calls.

A busy machine makes single spans longer and none shorter, so each is compared with the clock of the module in it, and
of several steps the best one must be within the bound.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import time
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

STEPS = 6
MIB = 1 << 20


def clock() -> float:
    return time.perf_counter()


class Known(nn.Module):
    """Sleep, and measure it with its own clock; in its backward as well."""

    def __init__(self, seconds: float, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.inner = inner
        self.seconds = seconds
        self.took: list[float] = []
        self.backward_took: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        began = clock()
        time.sleep(self.seconds)
        x = SlowBackward.apply(x * self.weight, self)
        x = x if self.inner is None else self.inner(x)
        self.took.append(clock() - began)
        return x


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        began = clock()
        time.sleep(ctx.module.seconds)
        ctx.module.backward_took.append(clock() - began)
        return gradient.clone(), None


class Through(nn.Module):
    """Call another module through a function."""

    def __init__(self, inner: nn.Module, by) -> None:
        super().__init__()
        self.inner = inner
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.by(self.inner, x)


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.leaf = Known(0.001)

    def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        return self(x, depth - 1) + self(x, depth - 1) if depth else self.leaf(x)


class Raises(nn.Module):
    """Fail after calling another module, on every second call."""

    def __init__(self) -> None:
        super().__init__()
        self.before = Known(0.002)
        self.num_calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        self.num_calls += 1
        if self.num_calls % 2:
            raise ValueError("not this time")
        return x


def train(net, num_steps=STEPS, again=(), between=None):
    """Train in a plain loop; `again` are exceptions after which a forward is retried."""
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    for _ in range(num_steps):
        optimizer.zero_grad()
        try:
            out = net(torch.ones(4, 8))
        except again:
            out = net(torch.ones(4, 8))
        out.sum().backward()
        optimizer.step()
        if between is not None:
            between()


def durations(it, module, stage="forward"):
    return [row["duration"] for row in it.trace if row["module"] == module and row["stage"] == stage]


def rows_of(it, step, stage="forward", module=None):
    rows = [row for row in it.trace if row["step"] == step and row["stage"] == stage]
    return [row for row in rows if module in (None, row["module"])]


def assert_exact(recorded: list[float], known: list[float]) -> None:
    """Check that every span holds what the module measured in it, and is at most a few per cent longer."""
    assert len(recorded) == len(known)
    excess = [one / other - 1.0 for one, other in zip(recorded, known, strict=True)]
    assert min(excess) >= 0.0
    assert sorted(excess)[len(excess) // 2] < 0.05


def assert_adds_up(it, root: str) -> None:
    """Check that phases add up to the step, self times to the forward of the step and to the outermost module."""
    assert len(it.steps) == STEPS - 1
    for step in it.steps:
        names = ("data_wait", "forward", "backward", "optimizer", "evaluation", "generation", "other")
        phases = [step[name] or 0.0 for name in names]
        assert min(phases) >= 0.0
        assert sum(phases) == pytest.approx(step["duration"], rel=0.02)
        forward = [row for row in rows_of(it, step["step"]) if not row["recomputed"] and row["phase"] == "train"]
        of_root = [row["duration"] for row in forward if row["module"] == root]
        assert min(row["self_duration"] for row in forward) >= 0.0
        assert sum(row["self_duration"] for row in forward) <= step["forward"] * 1.000001
        assert max(of_root) <= step["forward"] * 1.000001


def test_forward_and_backward_are_those_of_the_modules_own_clock(recording):
    inner = Known(0.01)
    outer = Known(0.02, inner)
    with recording(trace_every=1, trace_deep_every=1) as it:
        train(nn.Sequential(outer, nn.Identity()))

    assert_exact(durations(it, "Sequential.0"), outer.took[1:])
    assert_exact(durations(it, "Sequential.0.inner"), inner.took[1:])
    assert_exact(durations(it, "Sequential.0.inner", "backward"), inner.backward_took[1:])
    own = [rows_of(it, step, module="Sequential.0")[0]["self_duration"] for step in range(1, STEPS)]
    known = [one - other for one, other in zip(outer.took, inner.took, strict=True)]
    assert sorted(own)[len(own) // 2] == pytest.approx(sorted(known[1:])[len(own) // 2], rel=0.05)
    assert_adds_up(it, "Sequential")


def test_memory_that_a_module_takes_is_its_own(recording):
    class Takes(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.size = size
            self.taken: list[mmap.mmap] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.size:  # from the kernel: malloc may have it from what was freed before, which is there already
                self.taken.append(mmap.mmap(-1, self.size * MIB))
                self.taken[-1][:: mmap.PAGESIZE] = b"x" * (self.size * MIB // mmap.PAGESIZE)
            time.sleep(0.002)
            return x

    net = nn.Sequential(nn.Linear(8, 8), Takes(48), Takes(0), Takes(16))
    with recording(trace_every=1) as it:
        train(net, 4)

    for step in (1, 2, 3):
        (whole,) = rows_of(it, step, module="Sequential")
        taken = [rows_of(it, step, module=f"Sequential.{at}")[0]["allocated_delta"] for at in (1, 2, 3)]
        assert taken == pytest.approx([48.0, 0.0, 16.0], abs=1.0)
        assert whole["allocated_delta"] == pytest.approx(64.0, abs=2.0)


def test_a_shared_module_is_counted_once_a_call(recording):
    shared = Known(0.002)
    with recording(trace_every=1) as it:
        train(nn.Sequential(shared, nn.Identity(), shared))

    assert_exact(durations(it, "Sequential.0"), shared.took[2:])
    assert_adds_up(it, "Sequential")


@pytest.mark.parametrize("deep_every", [0, 1])
def test_recursion_is_counted_once(recording, deep_every):
    net = Recursive()
    with recording(trace_every=1, trace_deep_every=deep_every) as it:
        train(net)

    assert Counter(row["module"] for row in rows_of(it, 3)) == {"Recursive": 7, "Recursive.leaf": 4}
    assert_adds_up(it, "Recursive")
    backward = rows_of(it, 3, "backward", "Recursive")
    assert len(backward) == (7 if deep_every else 1)
    assert max(row["duration"] for row in backward) <= it.steps[2]["backward"]


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])
def test_checkpointed_modules_are_marked_when_they_run_again(recording, reentrant):
    inner = Known(0.002)
    by = functools.partial(checkpoint, use_reentrant=reentrant)
    net = nn.Sequential(nn.Linear(8, 8), Through(inner, by))
    with recording(trace_every=1) as it:
        train(net)

    assert_adds_up(it, "Sequential")
    for step in it.steps:
        calls = rows_of(it, step["step"], module="Sequential.1.inner")
        assert [row["recomputed"] for row in calls] == [False, True]
        assert step["micro_batches"] == 1
        assert step["backward"] >= calls[1]["duration"] + inner.seconds
    if reentrant:  # the other kind breaks off as soon as it has what it needs, with an exception
        assert_exact(durations(it, "Sequential.1.inner"), inner.took[2:])


def test_a_forward_that_raises_is_tried_again_and_counted_once(recording):
    net = nn.Sequential(nn.Identity(), Raises())
    with recording(trace_every=1) as it:
        train(net, again=(ValueError,))

    names = ("Sequential", "Sequential.0", "Sequential.1", "Sequential.1.before")
    assert Counter(row["module"] for row in rows_of(it, 3)) == dict.fromkeys(names, 2)
    assert_adds_up(it, "Sequential")


def test_a_call_caught_by_a_module_is_counted_once(recording):
    def tries(module, x):
        try:
            return module(x)
        except ValueError:
            return module(x)

    net = nn.Sequential(Through(Raises(), tries), nn.Identity())
    with recording(trace_every=1) as it:
        train(net)

    assert_adds_up(it, "Sequential")
    assert Counter(row["module"] for row in rows_of(it, 3))["Sequential.0.inner.before"] == 2


def test_an_outermost_module_that_fails_leaves_the_next_one_outermost(recording):
    failing, net = Raises(), Known(0.002)

    def tries():
        for _ in range(2):
            with contextlib.suppress(ValueError):
                failing(torch.ones(4, 8))

    with recording(trace_every=1) as it:
        train(net, between=tries)

    for step in it.steps:
        forward = rows_of(it, step["step"])
        roots = [row["duration"] for row in forward if row["module"] in ("Known", "Raises")]
        assert len(roots) == 3
        assert sum(row["self_duration"] for row in forward) == pytest.approx(sum(roots), rel=1e-6)
    assert len([row for row in it.trace if row["module"] == "Known" and row["stage"] == "backward"]) == STEPS - 1


def test_an_evaluation_in_between_is_no_forward_of_the_step_it_lies_in(recording):
    net = nn.Sequential(Known(0.002), nn.Linear(8, 8))

    def evaluate():
        with torch.no_grad():
            net(torch.ones(2, 8))

    with recording(trace_every=1, trace_deep_every=0) as it:
        train(net, between=evaluate)

    assert_adds_up(it, "Sequential")
    for step in it.steps:
        roots = rows_of(it, step["step"], module="Sequential")
        assert [(row["input_shapes"], row["phase"]) for row in roots] == [("2x8", "eval"), ("4x8", "train")]
        assert step["evaluation"] >= roots[0]["duration"]
        assert len(rows_of(it, step["step"], "backward")) == 1
