"""The hunt for the first value that is not finite, around real training loops in this process."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from probe_agent.recorder.config import Settings  # noqa: E402
from probe_agent.recorder.hooks import backward, data, modules, optimizer, phases  # noqa: E402
from probe_agent.recorder.source import Recorder  # noqa: E402
from probe_agent.recorder.steps.nan_hunt import NanHunt  # noqa: E402
from probe_agent.recorder.steps.tensor_reader import GRADIENT, items_of  # noqa: E402

NAN = float("nan")
#: Number of the running step, from 1 on. Faults begin with step FAULTY; the recorder calls it one less.
running = [0]
FAULTY = 4


@pytest.fixture(autouse=True)
def same_weights() -> None:
    torch.manual_seed(5)


def faulty(then: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that does something from step FAULTY on."""
    return lambda x: then(x) if running[0] >= FAULTY else x


class Poison(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * NAN if running[0] >= FAULTY else grad


class Layer(nn.Module):
    """A linear layer, and what is done to its output."""

    def __init__(self, then: Callable[[Any], Any] = lambda x: x) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.then = then

    def forward(self, x: Any) -> Any:
        return self.then(self.linear(x))


class Loop:
    """A training loop with a recorder, whose steps are watched from the second one on."""

    def __init__(self, model: Any, *, trace_every: int = 0, loss: Any = None, at_end: Any = None) -> None:
        self.model = model
        self.failures: list[BaseException] = []
        self.recorder = Recorder(Settings({"PROBE_TRACE_EVERY": str(trace_every)}), self._fail)
        self.sources = [kind.Source(self.recorder) for kind in (optimizer, modules, backward, data, phases)]
        self.loss = loss or (lambda out: out.square().mean())
        self.at_end = at_end
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.hunt: Any = None
        running[0] = 0

    def _fail(self, source: str, error: BaseException) -> bool:
        self.failures.append(error)
        return False

    def run(self, steps: int = 5, batches: Any = None, **options: Any) -> Any:
        """Train; return what was found."""
        step = self.recorder.step
        step.beginning.append(self.recorder.at_step.run_pending)
        for source in self.sources:
            source.start()
        items = items_of([(type(self.model).__name__, self.model)], (), (GRADIENT,))
        wanted: dict[str, Any] = {"every": 1, "num_steps": None, "budget_ms": 1e4} | options
        self.hunt = NanHunt(self.recorder.at_step, step, self.recorder.device, items, fail=self._fail, **wanted)
        self.recorder.at_step.submit(self.hunt)
        try:
            for batch in batches or [torch.ones(2, 4)] * steps:
                self.train(batch)
        finally:
            self.hunt.leave()
            self.hunt.collect()
            step.beginning.clear()
            for source in reversed(self.sources):
                source.stop()
            self.recorder.close()
        assert not self.failures, self.failures
        return self.hunt.found

    def train(self, batch: Any) -> None:
        running[0] += 1
        self.optimizer.zero_grad()
        self.loss(self.model(batch)).backward()
        if self.at_end is not None:
            self.at_end(self)
        self.optimizer.step()


def test_a_modules_own_code_is_named_with_the_module() -> None:
    loop = Loop(nn.Sequential(Layer(), Layer(faulty(lambda x: x * NAN)), Layer()))

    found = loop.run()

    assert (found.kind, found.modules, found.value, found.came_in) == ("forward", ("Sequential.1",), "NaN", "finite")
    assert (found.own, found.has_grad, found.num_calls, found.beside) == ((), True, 1, None)
    assert (loop.hunt.found_step, loop.hunt.last_good) == (3, 2)


def test_a_function_between_two_modules_belongs_to_the_module_around_them() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Layer(), Layer()

        def forward(self, x: Any) -> Any:
            return self.b(faulty(lambda y: torch.log(y - 1e9))(self.a(x)))

    found = Loop(nn.Sequential(Layer(), Around())).run()

    assert (found.kind, found.modules, found.beside) == ("forward", ("Sequential.1",), "before Sequential.1.b")


def test_backward_of_a_custom_function_is_found_where_it_runs() -> None:
    found = Loop(nn.Sequential(Layer(), Layer(Poison.apply), Layer())).run()

    assert (found.kind, found.modules, found.beside) == ("backward", ("Sequential.1",), "after Sequential.1.linear")
    assert found.value == "NaN"


def test_backward_of_a_module_that_is_one_function_is_found() -> None:
    class Bad(nn.Module):
        def forward(self, x: Any) -> Any:
            return Poison.apply(x)

    found = Loop(nn.Sequential(nn.Linear(4, 4), Bad(), nn.Linear(4, 4))).run()

    assert (found.kind, found.modules, found.beside) == ("backward", ("Sequential.1",), None)


def test_a_loss_without_a_derivative_is_told_from_the_model() -> None:
    found = Loop(nn.Sequential(Layer(), Layer()), loss=lambda out: Poison.apply(out).sum()).run()

    assert (found.kind, found.modules) == ("backward", ())


def test_the_jobs_own_loss_is_told_from_the_model() -> None:
    found = Loop(Layer(), loss=lambda out: faulty(lambda x: x * float("inf"))(out.square().sum())).run()

    assert (found.kind, found.value) == ("loss", "Infinity")


def test_a_bad_batch_is_told_as_such() -> None:
    loader = torch.utils.data.DataLoader([torch.full((4,), 1.0 if at < 6 else NAN) for at in range(12)], batch_size=2)

    found = Loop(Layer()).run(batches=loader)

    assert found.kind == "data"
    assert found.evidence[0] == ("batch", "", "NaN")


def test_an_input_without_a_loader_is_named_by_the_model() -> None:
    found = Loop(Layer()).run(batches=[torch.ones(2, 4)] * 3 + [torch.full((2, 4), NAN)] * 2)

    assert (found.kind, found.modules) == ("input", ("Layer",))


def test_a_parameter_that_is_not_finite_is_named_with_the_module() -> None:
    model = nn.Sequential(Layer(), Layer())

    def spoil(loop: Loop) -> None:
        if running[0] == 3:
            model[1].linear.bias.data[2] = NAN

    found = Loop(model, at_end=spoil).run()

    assert (found.modules, found.own, found.came_in) == (("Sequential.1.linear",), ("bias",), "finite")


def test_a_gradient_that_is_spoiled_after_backward_is_found_in_the_same_step() -> None:
    model = nn.Sequential(Layer(), Layer())

    def spoil(loop: Loop) -> None:
        if running[0] == 3:
            model[0].linear.weight.grad[0, 0] = float("inf")

    loop = Loop(model, at_end=spoil)
    found = loop.run()

    assert (found.kind, found.gradients, loop.hunt.found_step) == ("gradient", ("Sequential.0.linear.weight",), 2)
    assert found.value == "Infinity"


def test_infinite_values_in_a_healthy_job_are_nothing() -> None:
    class Masked(nn.Module):
        def forward(self, x: Any, *, mask: Any) -> Any:
            return x + torch.softmax(mask, -1) @ x.new_ones(4, 4)

    class Scores(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.masked_fill(x < x.max(), float("-inf"))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.masked, self.scores = nn.Linear(4, 4), Masked(), Scores()

        def forward(self, x: Any) -> Any:
            mask = torch.triu(torch.full((4, 4), float("-inf")), 1)[:2]
            x = self.masked(self.first(x), mask=mask)
            return torch.softmax(self.scores(x), -1) * x

    loop = Loop(Net())

    assert loop.run(20) is None
    assert loop.hunt.num_watched == 19
    assert loop.hunt.num_calls == 19 * 4


def test_an_evaluation_that_goes_wrong_is_found_without_gradients() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def evaluate(loop: Loop) -> None:
        if running[0] == 3:
            model[1].running_var[1] = NAN
            model.eval()
            with torch.no_grad():
                model(torch.ones(2, 4))
            model.train()

    found = Loop(model, at_end=evaluate).run()

    assert (found.modules, found.own, found.has_grad) == (("Sequential.1",), ("running_var",), False)


def test_a_module_that_runs_twice_is_named_with_its_call() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.cut = Cut()

        def forward(self, x: Any) -> Any:
            return self.cut(self.cut(self.layer(x)) - 1e9)

    class Cut(nn.Module):
        def forward(self, x: Any) -> Any:
            return faulty(lambda y: y * NAN if y.abs().max() > 1e6 else y)(x)

    found = Loop(Twice(), loss=lambda out: out.sum() * 1e-12).run()

    assert (found.kind, found.modules) == ("forward", ("Twice.cut",))
    assert (found.call, found.num_calls, found.value) == (2, 2, "NaN")


def test_a_checkpointed_block_is_watched_in_its_first_forward_and_in_backward() -> None:
    from torch.utils.checkpoint import checkpoint

    for reentrant in (False, True):
        bad = Layer(Poison.apply)

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.bad, self.last = Layer(), bad, Layer()  # noqa: B023

            def forward(self, x: Any) -> Any:
                return self.last(checkpoint(self.bad, self.first(x), use_reentrant=reentrant))  # noqa: B023

        found = Loop(Net()).run()

        assert (found.kind, found.modules) == ("backward", ("Net.bad",)), (reentrant, found)


def test_a_compiled_module_stands_for_what_is_inside() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = nn.Sequential(Layer(), torch.compile(Layer(), backend="aot_eager", fullgraph=True), Layer())

    def spoil(loop: Loop) -> None:
        if running[0] == 3:
            model[1]._orig_mod.linear.bias.data[2] = NAN

    found = Loop(model, at_end=spoil).run()

    assert (found.kind, found.modules, found.is_compiled) == ("forward", ("Sequential.1",), True)
    assert (found.came_in, found.own) == ("finite", ("_orig_mod.linear.bias",))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_a_step_that_the_scaler_skips_is_not_found() -> None:
    model = Layer()
    scaler = torch.amp.GradScaler("cpu", init_scale=1e37, growth_interval=3)

    class Scaled(Loop):
        def train(self, batch: Any) -> None:
            running[0] += 1
            self.optimizer.zero_grad()
            scaler.scale(self.loss(self.model(batch)) * 10).backward()
            scaler.step(self.optimizer)
            scaler.update()
            scales.append(scaler.get_scale())

    scales: list[float] = []
    loop = Scaled(model)

    assert loop.run(60) is None
    assert any(later < sooner for sooner, later in itertools.pairwise(scales[20:]))
    assert loop.hunt.num_watched > 10


@pytest.mark.parametrize("trace_every", [0, 1, 3])
def test_a_watched_loop_computes_the_same_and_is_left_as_it_was(trace_every: int) -> None:
    def train(watch: bool) -> tuple[Any, ...]:
        torch.manual_seed(3)
        model = nn.Sequential(Layer(torch.tanh), nn.Dropout(0.3), Layer())
        loop = Loop(model, trace_every=trace_every)
        if watch:
            loop.run(12)
        else:
            for _ in range(12):
                loop.train(torch.ones(2, 4))
        return [parameter.tolist() for parameter in model.parameters()], torch.get_rng_state().tolist()

    before = hooks()

    assert train(True) == train(False)
    assert hooks() == before


def hooks() -> list[Any]:
    module = sys.modules["torch.nn.modules.module"]
    names = [name for name in vars(module) if name.startswith("_global_")]
    return [
        *(dict(getattr(module, name)) for name in names if isinstance(getattr(module, name), dict)),
        module._has_any_global_hook,
    ]


def test_no_tensor_outlives_its_step() -> None:
    kept: list[Any] = []
    loop = Loop(nn.Sequential(Layer(), Layer()), loss=lambda out: kept.append(weakref.ref(out)) or out.sum())

    alive: list[int] = []

    def count(_: Loop) -> None:
        alive.append(sum(one() is not None for one in kept))

    loop.at_end = count
    assert loop.run(10) is None
    assert max(alive) <= 1


def test_a_spent_budget_is_said() -> None:
    loop = Loop(nn.Sequential(Layer(), Layer()))

    assert loop.run(5, budget_ms=0.0001) is None
    assert loop.hunt.num_unseen > 0


def test_it_ends_after_its_steps_and_removes_its_hooks() -> None:
    loop = Loop(nn.Sequential(Layer(), Layer()))

    assert loop.run(10, num_steps=3) is None
    assert loop.hunt.num_watched == 3
    assert loop.hunt.wait(0)


def test_modules_that_a_graph_captures_are_not_looked_at() -> None:
    """What the hunt enqueues there would become part of the graph, and run at each replay."""

    class Captured(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Layer(faulty(lambda x: x * NAN))

        def forward(self, x: Any) -> Any:
            device: Any = loop.recorder.device
            device.is_capturing = lambda: True
            try:
                return self.inner(x)
            finally:
                del device.is_capturing

    loop = Loop(nn.Sequential(Layer(), Captured()))

    found = loop.run()

    outputs = [subject for what, subject, _ in found.evidence if what == "output of"]
    assert (found.modules, outputs) == (("Sequential.1",), ["Sequential.1", "Sequential"])


def test_a_step_that_ends_inside_a_capture_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """To enqueue a read there, or to ask CUDA for an event, ends the capture with an error: on an H200 the job died."""
    capturing = lambda: running[0] == FAULTY - 2  # noqa: E731
    collect = NanHunt.collect
    while_capturing: list[int] = []

    def note(hunt: NanHunt) -> bool:
        while_capturing.extend([running[0]] * capturing())
        return collect(hunt)

    loop = Loop(nn.Sequential(Layer(), Layer(faulty(lambda x: x * NAN))))
    device: Any = loop.recorder.device
    monkeypatch.setattr(device, "is_capturing", capturing)
    monkeypatch.setattr(NanHunt, "collect", note)

    found = loop.run()

    assert while_capturing == []
    assert (found.modules, loop.hunt.found_step) == (("Sequential.1",), FAULTY - 1)
    assert loop.hunt.num_watched == 1, "neither the step of the capture nor the one that began in it"
