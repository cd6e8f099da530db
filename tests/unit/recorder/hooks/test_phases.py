"""Evaluation and generation are told apart from training."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

PARTS = ("data_wait", "forward", "backward", "optimizer", "evaluation", "generation", "other")
NAP = 0.01


class Napping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 1)
        #: How long its calls with gradients took by its own clock, and those without.
        self.took: dict[bool, list[float]] = {True: [], False: []}

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        began = time.perf_counter()
        time.sleep(NAP)
        output = self.inner(inputs)
        self.took[torch.is_grad_enabled()].append(time.perf_counter() - began)
        return output

    @torch.no_grad()
    def generate(self, inputs: torch.Tensor, length: int = 3) -> torch.Tensor:
        for _ in range(length):
            self(inputs)
        return inputs


def loader(num_batches: int, size: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.ones(num_batches * size, 8)), batch_size=size)


def assert_parts_add_up(steps: list[dict[str, float]]) -> None:
    for step in steps:
        parts = [step[name] or 0.0 for name in PARTS]
        assert sum(parts) == pytest.approx(step["duration"], rel=0.02)
        assert min(parts) >= 0.0, dict(zip(PARTS, parts, strict=True))


def evaluate_in_one_block(net: nn.Module, batches: DataLoader) -> None:
    with torch.no_grad():
        for (inputs,) in batches:
            net(inputs)


@torch.inference_mode()
def evaluate_decorated(net: nn.Module, batches: DataLoader) -> None:
    for (inputs,) in batches:
        net(inputs)


def evaluate_with_a_block_a_batch(net: nn.Module, batches: DataLoader) -> None:
    for (inputs,) in batches:
        with torch.set_grad_enabled(False):
            net(inputs)


def evaluate_some(net: nn.Module, batches: DataLoader) -> None:
    for number, (inputs,) in enumerate(batches):
        with torch.no_grad():
            net(inputs)
        if number == 2:
            break


def evaluate_a_batch_fetched_in_advance(net: nn.Module, batches: DataLoader) -> None:
    iterator = iter(batches)
    (inputs,) = next(iterator)
    while True:
        coming = next(iterator, None)
        with torch.no_grad():
            net(inputs)
        if coming is None:
            return
        (inputs,) = coming


EVALUATIONS = [
    evaluate_a_batch_fetched_in_advance,
    evaluate_in_one_block,
    evaluate_decorated,
    evaluate_with_a_block_a_batch,
    evaluate_some,
]


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize("evaluate", EVALUATIONS)
@pytest.mark.parametrize("is_first", [True, False])
def test_an_evaluation_is_not_part_of_training(recording, evaluate, every, is_first):
    net = Napping()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    passes = []  # how long zero_grad, forward and backward took by the job's own clock
    with recording(trace_every=every, trace_deep_every=0) as it:
        for number, (inputs,) in enumerate(loader(5, 4)):
            began = time.perf_counter()
            if number == 3 and is_first:  # the batch of the training has been fetched
                evaluate(net, loader(3, 16))
                whole = time.perf_counter() - began
            began = time.perf_counter()
            optimizer.zero_grad()
            net(inputs).sum().backward()
            passes.append(time.perf_counter() - began)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            began = time.perf_counter()
            if number == 2 and not is_first:
                evaluate(net, loader(3, 16))
                whole = time.perf_counter() - began

    assert_parts_add_up(it.steps)
    assert [step["batch_size"] for step in it.steps] == [4, 4, 4, 4]
    took = [step["evaluation"] for step in it.steps]
    assert took[0] == took[1] == took[3] == 0.0
    assert sum(net.took[False]) <= took[2] <= whole + 0.001
    assert {step["generation"] for step in it.steps} == {0.0}
    for step, took, most in zip(it.steps, net.took[True][1:], passes[1:], strict=True):
        assert took <= step["forward"] < most + 0.001  # an evaluation takes three naps more
    if every:
        phases = [row["phase"] for row in it.trace if row["step"] == 3 and row["module"] == "Napping.inner"]
        assert phases == ["eval"] * 3 + ["train"]


@pytest.mark.parametrize("every", [0, 1])
def test_rollouts_and_their_updates(recording, every):
    net, reference = Napping(), Napping().eval()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    own: list[list[float]] = []  # generation and evaluation of each step by the program's own clock
    with recording(trace_every=every, trace_deep_every=0) as it:
        for (prompts,) in loader(3, 4):
            began = time.perf_counter()
            net.generate(prompts)
            own.append([time.perf_counter() - began, 0.0])
            for number in range(2):
                if number:
                    own.append([0.0, 0.0])
                began = time.perf_counter()
                with torch.no_grad():
                    reference(prompts)
                own[-1][1] += time.perf_counter() - began
                optimizer.zero_grad()
                net(prompts).sum().backward()
                optimizer.step()

    assert_parts_add_up(it.steps)
    assert [step["rollout"] for step in it.steps] == [0, 1, 1, 2, 2]
    assert [step["batch_size"] for step in it.steps] == [0, 4, 0, 4, 0]
    for step, (generation, evaluation) in zip(it.steps, own[1:], strict=True):
        assert 3 * NAP * bool(generation) <= step["generation"] <= generation
        assert NAP <= step["evaluation"] <= evaluation
    if every:
        roots = [row for row in it.trace if row["step"] == 2 and "." not in row["module"] and row["stage"] == "forward"]
        assert [row["phase"] for row in roots] == ["generate"] * 3 + ["eval", "train"]


@pytest.mark.parametrize("every", [0, 1])
def test_a_frozen_part_of_the_model_is_its_forward(recording, every):
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.head = Napping(), nn.Linear(1, 1)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                hidden = self.frozen(inputs)
            return self.head(hidden)

    net = Whole()
    optimizer = torch.optim.SGD(net.head.parameters(), 0.1)
    with recording(trace_every=every) as it:
        for (inputs,) in loader(4, 4):
            net(inputs).sum().backward()
            optimizer.step()

    assert_parts_add_up(it.steps)
    assert {step["evaluation"] for step in it.steps} == {0.0}
    assert {row["phase"] for row in it.trace} <= {"train"}


def test_gradients_without_training_are_called_other(recording):
    net = Napping().eval()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with recording(trace_every=1, trace_deep_every=0) as it:
        for _ in range(3):
            net(torch.ones(4, 8)).sum().backward()
            optimizer.step()

    assert {row["phase"] for row in it.trace if row["stage"] == "forward"} == {"other"}
    assert {row["phase"] for row in it.trace if row["stage"] != "forward"} == {"train"}


def test_training_inside_a_function_without_gradients(recording):
    net = Napping()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)  # its step is such a function

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (net(torch.ones(4, 8)) ** 2).sum()
        loss.backward()
        return loss

    with recording(trace_every=0) as it:
        for _ in range(3):
            optimizer.step(closure)

    assert_parts_add_up(it.steps)
    assert {step["evaluation"] for step in it.steps} == {0.0}


def test_code_with_its_own_gradient_mode_is_unchanged(recording):
    modes = torch.autograd.grad_mode
    before = [dict(vars(kind)) for kind in (modes.no_grad, modes.inference_mode, modes.set_grad_enabled)]
    net = Napping()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with recording(trace_every=0):
        for _ in range(3):
            net(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            with pytest.raises(ZeroDivisionError):
                fail_without_gradients(net)
            assert torch.is_grad_enabled()
            with torch.inference_mode():
                assert torch.is_inference_mode_enabled()
            with torch.no_grad(), torch.enable_grad():
                assert torch.is_grad_enabled()
            assert not nn.modules.module._global_forward_pre_hooks
            scripted = torch.jit.script(_scripted)
            assert not scripted(torch.ones(2, requires_grad=True)).requires_grad

    assert [dict(vars(kind)) for kind in (modes.no_grad, modes.inference_mode, modes.set_grad_enabled)] == before
    assert not nn.modules.module._global_forward_pre_hooks
    assert not nn.modules.module._has_any_global_hook()


@torch.no_grad()
def fail_without_gradients(net: nn.Module) -> None:
    net(torch.ones(4, 8))
    raise ZeroDivisionError


def _scripted(inputs: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return inputs * 2


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_job_with_evaluations_ends_with_the_same_bits(recording, every, is_compiled):
    def train() -> tuple[list[torch.Tensor], dict[str, int]]:
        if is_compiled:
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1))
        call = torch.compile(net, backend="eager") if is_compiled else net
        loss_of = torch.compile(lambda output: output.square().sum(), backend="eager") if is_compiled else torch.sum
        optimizer = torch.optim.AdamW(net.parameters())
        seen = []
        for number in range(12):
            if number % 3 == 2:
                net.eval()
                with torch.no_grad():
                    seen.append(loss_of(torch.ones(2)))
                    seen.append(call(torch.ones(4, 8)))
                net.train()
            optimizer.zero_grad()
            loss_of(call(torch.randn(4, 8))).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        counted = {}
        if is_compiled:
            counters = torch._dynamo.utils.counters
            counted = {
                f"{kind}: {name}": num for kind in ("stats", "recompiles") for name, num in counters[kind].items()
            }
        return [*seen, *net.state_dict().values(), torch.rand(2)], counted

    alone, compiled_alone = train()
    with recording(trace_every=every, trace_deep_every=0, keep_dynamo=True) as it:
        under, compiled_under = train()

    assert all(torch.equal(one, other) for one, other in zip(alone, under, strict=True))
    assert compiled_alone == compiled_under
    assert [step["evaluation"] > 0 for step in it.steps] == [False, True, False] * 3 + [False, True]


def test_a_detach_while_a_block_without_gradients_begins_leaves_no_hook(recording):
    """The recorder's thread may stop the source between any two lines that the training thread runs."""
    table = nn.modules.module._global_forward_pre_hooks
    with recording(trace_every=0) as it:
        (source,) = (one for one in it.sources if one.name == "phases")
        put = source._hook.put

        def stopped(hook):
            source.stop()
            put(hook)

        source._hook.put = stopped
        source._arm()

        assert not table
        assert not nn.modules.module._has_any_global_hook()
