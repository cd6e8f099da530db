"""python.torch_trace: right names, right nesting, nothing counted twice, no trace on unsampled steps."""

from __future__ import annotations

import gc
import math
import threading
import time
from collections import Counter

import pytest
import torch
from torch.nn.modules import module as torch_module

from probe_agent.recorder.steps.governor import turn_of


class Block(torch.nn.Module):
    def __init__(self, seconds=0.0):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return self.inner(x)


def train(model, steps, loss_of=lambda out: out.square().mean(), optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model(torch.ones(4, 8))).backward()
        optimizer.step()


def forward_of(rows, step):
    return [row for row in rows if row["step"] == step and row["stage"] == "forward"]


def test_modules_are_named_by_the_path_below_the_outermost(recording):
    with recording(trace_every=1) as it:
        train(torch.nn.Sequential(Block(), Block()), 2)

    names = [row["module"] for row in forward_of(it.trace, 1)]
    assert names == ["Sequential.0.inner", "Sequential.0", "Sequential.1.inner", "Sequential.1", "Sequential"]
    assert [row["seq"] for row in it.trace if row["step"] == 1] == list(range(len(names) + 2))


class Mixed(Block):
    """As Lightning and accelerate do it: autocast is on inside of the outermost forward only."""

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


@pytest.mark.parametrize(("model", "seen"), [(Block, {}), (Mixed, {"cpu": "bfloat16"})])
def test_autocast_is_seen_in_the_forwards_that_it_is_on(recording, model, seen):
    with recording(trace_every=1) as it:
        train(model(), 3)

    assert it.recorder.seen.autocast == seen


def test_two_outermost_modules_of_one_class_get_names_of_their_own(recording):
    student, teacher = Block(), Block()

    with recording(trace_every=1) as it:
        train(lambda_module(lambda x: student(x) + teacher(x)), 2, optimizer=torch.optim.SGD(student.parameters(), 0.1))

    assert {"Block", "Block#2"} <= {row["module"] for row in it.trace}


def lambda_module(function):
    return function


def test_self_durations_add_up_to_the_outermost(recording):
    with recording(trace_every=1) as it:
        train(torch.nn.Sequential(Block(0.004), Block(0.002)), 3)

    for step in (1, 2):
        rows = forward_of(it.trace, step)
        whole = next(row for row in rows if row["module"] == "Sequential")
        assert math.isclose(sum(row["self_duration"] for row in rows), whole["duration"], rel_tol=1e-6)
        slow = next(row for row in rows if row["module"] == "Sequential.0")
        assert 0.004 <= slow["self_duration"] <= whole["duration"] - 0.002


def test_only_sampled_steps_have_rows_and_hooks(recording):
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooked = []

    with recording(trace_every=3) as it:
        for _ in range(9):
            train(model, 1, optimizer=optimizer)
            hooked.append(bool(torch_module._global_forward_hooks))

    assert {row["step"] for row in it.trace} == {4, 6}
    assert hooked == [turn_of(step, 3) is not None for step in range(1, 10)]


def test_a_forward_that_raises_spoils_nothing_else(recording):
    class Raises(torch.nn.Module):
        def forward(self, x):
            raise ValueError("no")

    model = torch.nn.Sequential(Block(), Raises())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with recording(trace_every=1) as it:
        for _ in range(3):
            with pytest.raises(ValueError, match="no"):
                model(torch.ones(4, 8))
            train(model[0], 1, optimizer=optimizer)

    assert [row["module"] for row in forward_of(it.trace, 1)] == [
        "Sequential.0.inner",
        "Sequential.0",
        "Sequential.1",
        "Sequential",
        "Sequential.0.inner",
        "Sequential.0",
    ]


def test_a_shared_module_is_counted_once_a_call(recording):
    shared = Block(0.002)

    with recording(trace_every=1) as it:
        train(torch.nn.Sequential(shared, shared), 2)

    rows = forward_of(it.trace, 1)
    whole = next(row for row in rows if row["module"] == "Sequential")
    assert sum(row["module"] == "Sequential.0" for row in rows) == 2
    assert math.isclose(sum(row["self_duration"] for row in rows), whole["duration"], rel_tol=1e-6)


def test_backward_of_the_outermost_is_seen_in_every_sampled_step(recording):
    with recording(trace_every=1, trace_deep_every=0) as it:
        train(Block(), 4)

    backward = [row for row in it.trace if row["stage"] == "backward"]
    assert [(row["step"], row["module"]) for row in backward] == [(1, "Block"), (2, "Block"), (3, "Block")]


def test_deep_steps_show_which_modules_backward_is_slow(recording):
    class SlowBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(0.01)
            return gradient * 2

    class Slow(torch.nn.Module):
        def forward(self, x):
            return SlowBackward.apply(x)

    model = torch.nn.Sequential(Block(), Slow(), Block())

    with recording(trace_every=1, trace_deep_every=1) as it:
        train(model, 3)

    backward = {row["module"]: row for row in it.trace if row["step"] == 2 and row["stage"] == "backward"}
    assert set(backward) == {f"Sequential{path}" for path in ("", ".0", ".0.inner", ".1", ".2", ".2.inner")}
    assert 0.01 <= backward["Sequential.1"]["duration"] <= backward["Sequential"]["duration"]
    assert backward["Sequential.2"]["duration"] < backward["Sequential.1"]["duration"]
    assert backward["Sequential"]["self_duration"] < backward["Sequential"]["duration"] / 2


def test_the_gradient_norm_is_torchs(recording):
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    with recording(trace_every=1, trace_deep_every=1) as it:
        train(model, 3, optimizer=optimizer)

    expected = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    assert math.isclose(it.steps[-1]["grad_norm"], expected.item(), rel_tol=1e-6)


def test_evaluation_without_gradients_is_recorded_too(recording):
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    with recording(trace_every=1) as it:
        for _ in range(3):
            train(model, 1, optimizer=optimizer)
            with torch.no_grad():
                model(torch.ones(4, 8))

    assert len(forward_of(it.trace, 1)) == 4


@pytest.mark.filterwarnings("error:Using `torch.compile")
def test_compiled_models_keep_their_graphs(recording):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(compiled, 2, optimizer=optimizer)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]

    with recording(trace_every=3) as it:
        train(compiled, 7, optimizer=optimizer)
    train(compiled, 2, optimizer=optimizer)

    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    assert not torch._dynamo.utils.counters["graph_break"]
    assert {row["module"] for row in forward_of(it.trace, 4)} == {"OptimizedModule"}


def test_a_model_first_compiled_under_recording_compiles_to_one_graph(recording):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    compiled = torch.compile(model, backend="eager", fullgraph=True)

    with recording(trace_every=1):
        train(model, 2)
        train(compiled, 5, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]

    assert graphs == 1
    assert not torch._dynamo.utils.counters["graph_break"]


def test_the_jobs_own_global_hooks_come_and_go_as_without_us(recording):
    model, calls = Block(), []
    before = torch_module.register_module_forward_hook(lambda *_: calls.append("before"))
    tables = torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks

    with recording(trace_every=1):
        train(model, 1)
        meanwhile = torch_module.register_module_forward_pre_hook(lambda *_: calls.append("meanwhile"))
        calls.clear()
        model(torch.ones(4, 8))
        both = [*calls]
        before.remove()
        calls.clear()
        model(torch.ones(4, 8))
        one = [*calls]
    calls.clear()
    model(torch.ones(4, 8))
    after = [*calls]
    meanwhile.remove()

    assert both == ["meanwhile", "meanwhile", "before", "before"]  # of the inner module and of the outer one
    assert one == after == ["meanwhile", "meanwhile"]
    assert (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks) == tables == ({}, {})
    assert torch_module._global_forward_hooks is tables[0]
    assert not torch_module._global_forward_hooks_always_called
    assert not any(vars(table) for table in tables)  # nothing of ours hides a method of theirs


def test_a_forward_that_raises_on_another_thread_raises_what_it_raised(recording):
    """torch iterates over its hooks once more then; they come and go on the thread that steps."""

    class Raises(torch.nn.Module):
        def forward(self, x):
            raise ValueError("no")

    raised, is_over = Counter(), threading.Event()

    def raise_again_and_again():
        module = Raises()
        while not is_over.is_set():
            try:
                module(None)
            except (ValueError, RuntimeError) as error:
                raised[type(error)] += 1

    thread = threading.Thread(target=raise_again_and_again)
    of_the_job = torch_module.register_module_forward_hook(lambda *_: time.sleep(0.001), always_call=True)
    try:
        with recording(trace_every=2):
            thread.start()
            train(torch.nn.Linear(8, 1), 50)
    finally:
        is_over.set()
        thread.join()
        of_the_job.remove()

    assert set(raised) == {ValueError}


def test_a_hook_of_the_job_registered_in_a_sampled_step_can_be_removed_after_detach(recording):
    model, calls = Block(), []
    with recording(trace_every=1):
        train(model, 1)
        first = torch_module.register_module_forward_hook(lambda *_: calls.append("first"))
        train(model, 1)
        second = torch_module.register_module_forward_hook(lambda *_: calls.append("second"))
    gc.collect()
    calls.clear()
    model(torch.ones(4, 8))
    first.remove()
    model(torch.ones(4, 8))
    second.remove()
    model(torch.ones(4, 8))

    assert calls == ["first", "second"] * 2 + ["second"] * 2
    assert not torch_module._global_forward_hooks


@pytest.mark.parametrize("compiled_first", [True, False])
def test_global_hooks_of_the_job_are_compiled_as_without_us(recording, compiled_first):
    """Dynamo iterates over torch's tables, too, and guards on them."""
    of_the_job = torch_module.register_module_forward_hook(lambda module, args, output: output * 2)
    model = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def compiled_to():
        torch._dynamo.utils.counters.clear()
        train(model, 6, optimizer=optimizer)
        return {name: dict(counts) for name, counts in torch._dynamo.utils.counters.items()}

    try:
        torch._dynamo.reset()
        without = compiled_to()
        if not compiled_first:
            torch._dynamo.reset()
        with recording(trace_every=2, keep_dynamo=True) as it:
            within = compiled_to()
            (told,) = it.rows("probe.errors")
            it.failures._buffer.rows.clear()
        after = compiled_to()
    finally:
        of_the_job.remove()

    assert without["stats"]["unique_graphs"] == 1
    assert within == ({} if compiled_first else without)
    assert after == {}
    assert "the job has hooks on all modules" in told["message"]


def test_a_detach_while_a_sampled_step_begins_leaves_no_hook(recording):
    """The recorder's thread may stop the source between any two lines that the training thread runs."""
    num_stops = 0

    with recording(trace_every=1) as it:
        (source,) = (one for one in it.sources if one.name == "torch_trace")
        begin = source._spans.begin

        def stopped(allocated):
            nonlocal num_stops
            num_stops += 1
            source.stop()
            begin(allocated)

        source._spans.begin = stopped
        train(torch.nn.Sequential(Block()), 2)

        assert num_stops == 1
        assert not torch_module._global_forward_hooks_always_called
        assert not torch_module._has_any_global_hook()
        assert torch_module._has_any_global_hook.__module__ == torch_module.__name__
