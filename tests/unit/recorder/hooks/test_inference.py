"""Loops without an optimizer: a step is a call of the outermost module, and nothing of ours is left in its class."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from probe_agent.recorder.guest import own_threads  # noqa: E402
from probe_agent.recorder.hooks import inference  # noqa: E402
from probe_agent.recorder.steps import ends  # noqa: E402
from probe_agent.recorder.steps.governor import turn_of  # noqa: E402

DEADLINE_S = 30.0


class Net(nn.Module):
    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return self.inner(x)


class Plain(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Tree(nn.Module):
    """Calls itself."""

    def forward(self, x: torch.Tensor, depth: int = 3) -> torch.Tensor:
        return self(x, depth - 1) + self(x, depth - 1) if depth else x


def serve(net, num_calls):
    with torch.no_grad():
        for _ in range(num_calls):
            net(torch.ones(4, 8))


def train(net, num_steps, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(num_steps):
        optimizer.zero_grad()
        net(torch.ones(4, 8)).sum().backward()
        optimizer.step()


@contextmanager
def looking(it, monkeypatch):
    """Our thread reads the stack of this one, as in a job, only sooner."""
    monkeypatch.setattr(inference, "QUIET_NS", 0)
    monkeypatch.setattr(inference, "LOOK_SHARE", 0.5)
    going = [True]

    def look() -> None:
        while going:
            it.inference.tick()
            time.sleep(0.0005)

    own_threads.start(look)
    try:
        yield
    finally:
        going.clear()
        assert own_threads.wait_for_end(DEADLINE_S) == 0


def call_until(net, is_so):
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline
        serve(net, 1)


def test_the_outermost_module_is_found_and_its_calls_are_steps(recording, monkeypatch):
    net = nn.Sequential(Net(0.001), Net(0.001))

    with recording(trace_every=2) as it, looking(it, monkeypatch):
        call_until(net, lambda: len(it.steps) >= 4)

    assert [step["step"] for step in it.steps] == list(range(1, len(it.steps) + 1))
    paths = ("", ".0", ".0.inner", ".1", ".1.inner")
    assert {row["module"] for row in it.trace} == {f"Sequential{path}" for path in paths}
    assert {row["stage"] for row in it.trace} == {"forward"}
    assert all(turn_of(row["step"], 2) is not None for row in it.trace)
    for step in it.steps:
        assert 0.002 <= step["forward"] <= step["duration"]
        assert step["backward"] is step["loss"] is step["lr"] is None
        assert sum(step[name] or 0.0 for name in ("data_wait", "forward", "optimizer", "other")) == pytest.approx(
            step["duration"], rel=0.02
        )


def test_a_job_with_an_optimizer_trains_sooner_or_later(recording, monkeypatch):
    net = Net(0.001)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    with recording() as it, looking(it, monkeypatch):
        call_until(net, lambda: it.inference._searched_at)
        serve(net, 20)

    assert it.steps == []
    assert "__call__" not in vars(Net)
    del optimizer


def test_an_evaluation_before_training_is_not_a_step(recording):
    net = Net()

    with recording(trace_every=1) as it:
        it.inference.follow(net)
        serve(net, 5)
        train(net, 4)
        it.inference.tick()
        during = vars(Net).keys()
        serve(net, 3)

    # The first of four steps is the one in which the recorder came to know of the training.
    assert [(step["step"], step["micro_batches"]) for step in it.steps] == [
        *((number, 0) for number in (1, 2, 3, 4)),
        *((number, 1) for number in (1, 2, 3)),
    ]
    assert "__call__" not in during
    assert [row["step"] for row in it.trace if row["module"] == "SGD"] == [1, 2, 3]
    assert [row["step"] for row in it.trace if row["module"] == "Net"] == [1, 2, 3, 4, 1, 1, 2, 2, 3, 3]


def test_a_call_between_two_steps_does_not_count_instead(recording, monkeypatch):
    net, between = Net(), Net(0.002)

    with recording() as it:
        it.inference.follow(net)
        with looking(it, monkeypatch):
            for _ in range(10):
                serve(net, 1)
                serve(between, 5)
        assert it.inference._watch.module is net
        del net
        with looking(it, monkeypatch):
            call_until(between, lambda: getattr(it.inference._watch, "module", None) is between)

    assert len(it.steps) >= 9


def test_a_backward_ends_it_and_takes_the_hooks_off(recording):
    net = Net()

    with recording(trace_every=1) as it:
        it.inference.follow(net)
        serve(net, 3)
        for _ in range(2):
            net(torch.ones(4, 8)).sum().backward()
        hooked = bool(nn.modules.module._global_forward_hooks)
        num_steps = len(it.steps)
        serve(net, 3)

    assert not hooked
    assert len(it.steps) == num_steps


def test_steps_that_the_job_ends_itself_go_before(recording):
    net = Net()

    with recording() as it:
        it.inference.follow(net)
        serve(net, 3)
        for _ in range(3):
            serve(net, 2)
            it.recorder.ends.end_by_hand(time.perf_counter_ns())

    assert [step["step"] for step in it.steps[-2:]] == [1, 2]
    assert it.inference._ends.takes_calls is False


def test_calls_inside_each_other_are_one_step(recording):
    tree = Tree()

    with recording(trace_every=0) as it:
        it.inference.follow(tree)
        serve(tree, 4)

    assert [step["step"] for step in it.steps] == [1, 2, 3]


def test_a_call_that_raises_is_part_of_the_next_ones_step(recording):
    net = Net()

    with recording(trace_every=0) as it:
        it.inference.follow(net)
        serve(net, 2)
        with pytest.raises(RuntimeError, match="shapes"):
            net(torch.ones(4, 7))
        serve(net, 2)

    assert len(it.steps) == 3


def test_other_modules_of_the_class_are_called_as_ever(recording):
    net, other = Net(), Net()

    with recording(trace_every=0) as it:
        it.inference.follow(net)
        serve(other, 5)
        assert other.__call__ == nn.Module.__call__.__get__(other)
        serve(net, 3)

    assert len(it.steps) == 2


def test_the_model_is_not_kept_alive_and_another_one_can_follow(recording):
    net = Net()
    gone = weakref.ref(net)

    with recording(trace_every=0) as it:
        it.inference.follow(net)
        serve(net, 3)
        del net
        assert gone() is None
        other = Net()
        it.inference.follow(other)
        serve(other, 3)
        assert len(it.steps) == 5

    assert "__call__" not in vars(Net)


def test_a_method_that_the_job_has_kept_works_on_after_detach(recording):
    net = Net()

    with recording(trace_every=0) as it:
        it.inference.follow(net)
        call = net.__call__
        for _ in range(3):
            call(torch.ones(4, 8))
        assert len(it.steps) == 2

    num_rows = len(it.steps)
    assert torch.equal(call(torch.ones(4, 8)), net(torch.ones(4, 8)))
    assert len(it.steps) == num_rows


def test_a_detach_in_the_middle_of_a_call_ends_no_step(recording):
    class Detaches(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.seconds:
                it.stop()
            return self.inner(x)

    net = Detaches()
    with recording(trace_every=1) as it:
        it.inference.follow(net)
        serve(net, 3)
        num_ended = it.recorder.ends.num_ended
        net.seconds = 1.0
        serve(net, 2)

    assert it.recorder.ends.num_ended == num_ended
    assert "__call__" not in vars(Detaches)
    assert not nn.modules.module._global_forward_hooks


def compiled(net):
    return torch.compile(net, backend="eager", fullgraph=True)


def compiled_in_place(net):
    net.compile(backend="eager", fullgraph=True)
    return net


@pytest.mark.parametrize("how", [compiled, compiled_in_place])
def test_compiled_models_are_seen_from_outside(recording, how):
    net = Plain()
    outside = how(net)
    kinds = (Plain, type(outside))
    before = [vars(kind).get("__call__") for kind in kinds]

    with recording(trace_every=2) as it:
        it.inference.follow(outside)
        serve(outside, 5)
        counters = dict(torch._dynamo.utils.counters["stats"])
        serve(outside, 5)

    assert len(it.steps) == 9
    assert torch._dynamo.utils.counters["stats"] == counters
    assert counters["unique_graphs"] == 1
    assert [vars(kind).get("__call__") for kind in kinds] == before


def test_the_classes_and_modules_are_left_as_they_were(recording):
    net = Net()
    before = dict(vars(Net)), dict(vars(net)), dict(vars(nn.Module))

    with recording(trace_every=1) as it:
        it.inference.follow(net)
        serve(net, 3)
        assert vars(net) == before[1]

    assert (dict(vars(Net)), dict(vars(net)), dict(vars(nn.Module))) == before
    gc.collect()
    assert it.steps


def test_a_graphs_class_that_makes_its_own_call_is_left_alone():
    traced = torch.fx.symbolic_trace(Net())
    scripted = torch.jit.script(nn.Sequential(nn.Linear(8, 8)))

    assert inference._can_be_watched(Net)
    assert not inference._can_be_watched(type(traced))
    assert not inference._can_be_watched(type(scripted))


def call_on_threads(net, num_threads, num_calls):
    """Return the seconds of each call, by thread, by the thread's own clock."""
    took = [[] for _ in range(num_threads)]
    together = threading.Barrier(num_threads)

    def work(mine):
        together.wait()
        for _ in range(num_calls):
            began = time.perf_counter()
            serve(net, 1)
            mine.append(time.perf_counter() - began)

    workers = [threading.Thread(target=work, args=(mine,)) for mine in took]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return took


def test_calls_on_many_threads_that_overlap_are_a_row_each(recording):
    net = Net(0.01)

    with recording(trace_every=0) as it:
        it.inference.follow(net)
        took = call_on_threads(net, 8, 12)

    # Of the thread that calls first, the first call is not whole.
    assert len(it.steps) == 8 * 12 - 1
    numbers = {step["step"] for step in it.steps}
    assert len(numbers) == 95
    assert numbers <= set(range(1, 97))  # one belongs to the sampled thread's next step
    assert all(0.01 <= step["forward"] <= step["duration"] for step in it.steps)
    by_their_clock = sum(map(sum, took)) - max(calls[0] for calls in took)
    assert sum(step["forward"] for step in it.steps) == pytest.approx(by_their_clock, rel=0.1)


def test_calls_on_all_threads_are_marked_while_a_question_traces(recording):
    net = Net(0.01)

    with recording(trace_every=0) as it:
        it.inference.follow(net)
        call_on_threads(net, 4, 3)
        with it.recorder.step.traced_by("leaks"):
            call_on_threads(net, 4, 6)

    # A thread that is new has no step before its first call, which begins unmarked.
    marked = [step["traced"] for step in it.steps]
    assert not any(marked[: 4 * 3 - 1])
    assert sum(marked) >= 4 * (6 - 1)


def test_one_thread_is_sampled_and_another_when_that_calls_no_more(recording, monkeypatch):
    monkeypatch.setattr(ends, "MOVE_NS", 1_000_000)
    monkeypatch.setattr(ends, "MOVE_CALLS", 2)
    net = Net(0.001)

    with recording(trace_every=2) as it:
        it.inference.follow(net)
        call_on_threads(net, 1, 6)
        time.sleep(0.02)
        call_on_threads(net, 1, 20)

    numbers = [step["step"] for step in it.steps]
    assert len(numbers) == len(set(numbers)) >= 24
    assert 8 <= len([step for step in it.steps if step["sampled"]]) <= 13
    assert {row["step"] for row in it.trace} == {step["step"] for step in it.steps if step["sampled"]}


def test_replicas_on_other_threads_are_followed_too(recording, monkeypatch):
    first, second = Net(0.002), Net(0.002)

    with recording(trace_every=0) as it, looking(it, monkeypatch):
        call_until(first, lambda: it.inference._watch is not None)
        done = []

        def work():
            call_until(second, lambda: it.inference._watch.watches(second) and it.inference._watch.watches(first))
            done.append(len(it.steps))
            serve(second, 5)

        worker = threading.Thread(target=work)
        worker.start()
        call_until(first, lambda: not worker.is_alive())
        worker.join()

    assert len(it.steps) >= done[0] + 5


def test_an_unrecognized_training_loop_does_not_silence_calls(recording):
    net = Net()

    with recording(trace_every=0) as it:
        it.inference.follow(net)
        serve(net, 3)
        for _ in range(4):
            net(torch.ones(4, 8))

    assert len(it.steps) == 2 + 3  # the first with gradients could have begun training


def test_functional_calls_are_calls_of_the_job(recording):
    net = Plain()
    parameters = dict(net.named_parameters())

    with recording(trace_every=0) as it:
        it.inference.follow(net)
        for _ in range(5):
            grads = torch.func.grad(lambda p: torch.func.functional_call(net, p, (torch.ones(4, 8),)).sum())(parameters)
            parameters = {name: value - 0.1 * grads[name] for name, value in parameters.items()}

    assert len(it.steps) == 4


def test_a_detach_at_the_end_of_a_compilation_leaves_the_class_alone(recording, monkeypatch):
    """The recorder's thread may stop the source between any two lines that the job's thread runs."""

    class Model(torch.nn.Module):
        pass

    model = Model()
    with recording() as it:
        it.inference.follow(model)
        put = inference.CallWatch.put

        def stopped(watch):
            it.inference.stop()
            put(watch)

        monkeypatch.setattr(inference.CallWatch, "put", stopped)
        it.inference._put()

        assert "__call__" not in vars(Model)
