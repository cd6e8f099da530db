"""Unusual uses of models and tensors in the middle of a recorded step, with and without training: the result is the
same as without us."""

from __future__ import annotations

import copy
import inspect
import io
import os
import pickle
import re
import warnings
from collections import UserDict
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("the job's own")


class Equal(Net):
    """Compare in the job's own way."""

    __hash__ = nn.Module.__hash__

    def __eq__(self, other: object) -> bool:
        raise AssertionError("nobody asked")


class Unlike(UserDict):
    """A batch with values that cannot be read."""

    def values(self) -> object:
        raise OSError("not now")


class Nested(torch.utils.data.IterableDataset):
    def __iter__(self) -> object:
        yield torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])


def is_equal(net: nn.Module, other: nn.Module) -> bool:
    pairs = zip(net.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(one, another) for one, another in pairs)


def is_copied(net: nn.Module) -> object:
    return is_equal(net, copy.deepcopy(net)), is_equal(net, pickle.loads(pickle.dumps(net)))


def is_saved(net: nn.Module) -> object:
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return is_equal(net, torch.load(file, weights_only=False))


def is_saved_with_its_input(net: nn.Module) -> object:
    x = torch.ones(2, 8, requires_grad=True)
    net(x).sum().backward()
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file), copy.deepcopy(x), x.grad


def is_pickled_with_its_class(net: nn.Module) -> object:
    """Pickle as cloudpickle and dill do with what a script defines."""
    given = {name: value for name, value in vars(type(net)).items() if name == "__call__"}
    return pickle.loads(pickle.dumps(given)) in ({}, {"__call__": nn.Module.__call__}), pickle.loads(
        pickle.dumps(net.__call__)
    )(torch.ones(1, 8))


def is_called_by_its_method(net: nn.Module) -> object:
    call, of_class = net.__call__, type(net).__call__
    same = of_class is nn.Module.__call__, inspect.signature(call) == inspect.signature(nn.Module().__call__)
    return same, call(torch.ones(1, 8)), of_class(net, torch.ones(1, 8)), list(map(net, [torch.ones(1, 8)]))


def is_subclassed(net: nn.Module) -> object:
    class Loud(type(net)):
        def __call__(self, *args: object) -> object:
            return super().__call__(*args) * 2

    loud = Loud()
    loud.load_state_dict(net.state_dict())
    net.__class__ = Loud
    try:
        return loud(torch.ones(1, 8)), net(torch.ones(1, 8))
    finally:
        net.__class__ = Net


def is_of_another_call(net: nn.Module) -> object:
    """Put the job's own `__call__` on the class and remove it again."""
    theirs = type(net).__call__
    type(net).__call__ = lambda self, *args: theirs(self, *args) + 1
    seen = net(torch.ones(1, 8))
    del type(net).__call__
    return seen, net(torch.ones(1, 8))


def is_compiled(net: nn.Module) -> object:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    whole = torch.compile(net, backend="eager", fullgraph=True)
    around = torch.compile(lambda x: net(x) * 2, backend="eager", fullgraph=True)
    given = [call(torch.ones(length, 8)) for length in (2, 2, 5) for call in (whole, around, net)]
    del whole, around
    return given, dict(torch._dynamo.utils.counters["stats"]), dict(torch._dynamo.utils.counters["graph_break"])


def is_quantized(net: nn.Module) -> object:
    return torch.ao.quantization.quantize_dynamic(net, {nn.Linear})(torch.ones(1, 8))


def is_shared_with_a_forked_process(net: nn.Module) -> object:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, repr(net(torch.ones(1, 8)).tolist()).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as file:
        return file.read()


def is_averaged(net: nn.Module) -> object:
    averaged = torch.optim.swa_utils.AveragedModel(net)
    averaged.update_parameters(net)
    return averaged(torch.ones(1, 8))


def is_traced(net: nn.Module) -> object:
    traced = torch.jit.trace(net, torch.ones(1, 8))
    return re.sub(r"___torch_mangle_\d+\.", "", str(traced.inlined_graph)), traced(torch.ones(3, 8))


def is_scripted(net: nn.Module) -> object:
    return torch.jit.script(net)(torch.ones(1, 8))


def is_traced_by_fx(net: nn.Module) -> object:
    return torch.fx.symbolic_trace(net).code


def is_exported(net: nn.Module) -> object:
    return str(torch.export.export(net, (torch.ones(2, 8),)).graph)


def has_gradients_for_each_sample(net: nn.Module) -> object:
    parameters = dict(net.named_parameters())

    def loss(parameters: object, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, parameters, (x,)).sum()

    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, torch.arange(24.0).view(3, 8))


def has_a_jacobian(net: nn.Module) -> object:
    x = torch.ones(2, 8)
    forward = torch.func.jvp(net, (x,), (x,))
    return torch.func.jacrev(net)(x), forward, torch.autograd.functional.hessian(lambda x: net(x).sum(), x)


def has_a_gradient_penalty(net: nn.Module) -> object:
    x = torch.ones(2, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    gradient.norm().backward()
    return gradient, [parameter.grad for parameter in net.parameters()]


def is_counted(net: nn.Module) -> object:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with FlopCounterMode(display=False) as counter:
        net(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    return counter.get_total_flops(), counter.get_flop_counts()


class Listed(torch.utils._python_dispatch.TorchDispatchMode):
    """Record every operator that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def is_watched(net: nn.Module) -> object:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with Listed() as listed:
        for _ in range(3):
            net(torch.ones(2, 8)).sum().backward()
            optimizer.step()
    return listed.seen


class Reluctant(torch.Tensor):
    """A loss that is expensive to read: if it is sharded, ranks would have to communicate."""

    def item(self) -> float:
        raise AssertionError("nobody asked")


def has_a_loss_of_its_own_kind(net: nn.Module) -> object:
    net(torch.ones(2, 8)).sum().as_subclass(Reluctant).backward()
    return [parameter.grad for parameter in net.parameters()]


def is_fake(net: nn.Module) -> object:
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        return net(torch.ones(2, 8)).shape


def takes_nested_tensors(net: nn.Module) -> object:
    return net(torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(1, 8)])).to_padded_tensor(0.0)


def fails(net: nn.Module) -> object:
    with pytest.raises(KeyError, match="the job's own") as raised:
        nn.Sequential(net, Broken())(torch.ones(2, 8))
    return raised.value.__context__, [type(error) for error in raised.value.args]


def compares(net: nn.Module) -> object:
    equal = nn.Sequential(Equal(), nn.Sigmoid())
    equal.load_state_dict({f"0.{name}": value for name, value in net.state_dict().items()})
    equal(torch.ones(2, 8)).sum().backward()
    return [parameter.grad for parameter in equal.parameters()]


def loads_odd_batches(net: nn.Module) -> object:
    odd = DataLoader([0, 1], collate_fn=lambda _: Unlike())
    nested = DataLoader(Nested(), batch_size=None)
    return [len(batch) for batch in odd], [batch.size(0) for batch in nested]


def is_parametrized(net: nn.Module) -> object:
    other = copy.deepcopy(net)
    torch.nn.utils.parametrizations.weight_norm(other.first)
    torch.nn.utils.parametrize.cached()
    other(torch.ones(1, 8)).sum().backward()
    return [parameter.grad for parameter in other.parameters()]


def is_hooked(net: nn.Module) -> object:
    seen: list[str] = []
    handles = [
        net.register_forward_hook(lambda module, args, output: seen.append("forward")),
        net.register_full_backward_hook(lambda module, before, after: seen.append("backward")),
        net.first.register_forward_pre_hook(lambda module, args: seen.append("before")),
    ]
    net(torch.ones(2, 8)).sum().backward()
    for handle in handles:
        handle.remove()
    return seen, dict(net._forward_hooks), dict(nn.modules.module._global_backward_hooks)


def changes_its_output(net: nn.Module) -> object:
    return net(torch.ones(2, 8)).add_(1.0).relu_()


def has_forward_gradients(net: nn.Module) -> object:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(2, 8), torch.ones(2, 8))
        return torch.autograd.forward_ad.unpack_dual(net(dual)).tangent


def runs_in_inference_mode(net: nn.Module) -> object:
    with torch.inference_mode():
        return net(torch.ones(2, 8)).clone()


def is_checkpointed(net: nn.Module) -> object:
    x = torch.ones(2, 8, requires_grad=True)
    for reentrant in (True, False):
        torch.utils.checkpoint.checkpoint(net, x, use_reentrant=reentrant).sum().backward()
    return x.grad, [parameter.grad for parameter in net.parameters()]


USES = (
    is_pickled_with_its_class, is_called_by_its_method, is_subclassed, is_of_another_call, is_compiled,
    is_quantized, is_shared_with_a_forked_process, is_copied, is_saved, is_saved_with_its_input, is_averaged,
    is_traced, is_scripted, is_traced_by_fx, is_exported, has_gradients_for_each_sample, has_a_jacobian,
    has_a_gradient_penalty, is_counted, is_watched, has_a_loss_of_its_own_kind, is_fake, takes_nested_tensors,
    fails, compares, loads_odd_batches, is_parametrized, is_hooked, changes_its_output, has_forward_gradients,
    runs_in_inference_mode, is_checkpointed,
)  # fmt: skip


def plain(value: object) -> object:
    """Replace tensors by lists, which compare as a whole."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def observed(use: Callable[[nn.Module], object]) -> tuple[object, list[str]]:
    """Return the result of a use on a new model, between two of its steps, and Python's warnings."""
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for step in range(3):
            optimizer.zero_grad()
            net(torch.ones(2, 8)).sum().backward()
            if step == 1:
                given = use(net)
            optimizer.step()
    return given, [str(warning.message) for warning in warned]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_it_goes_as_it_goes_without_us(recording, use):
    observed(use)  # some warnings come once a process
    alone = observed(use)
    with recording(trace_every=1, trace_deep_every=1):
        recorded = observed(use)

    assert plain(recorded) == plain(alone)


def observed_in_a_loop(use: Callable[[nn.Module], object], recording=None, num_before: int = 2):
    """The same without training; also how many calls were steps, and the contents of the class afterwards."""
    torch.manual_seed(0)
    net = Net()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if recording is None:
            net(torch.ones(2, 8))
            given = use(net)
            steps = None
        else:
            with recording(trace_every=1, trace_deep_every=1) as it:
                it.inference.follow(net)
                for _ in range(num_before):
                    net(torch.ones(2, 8))
                given = use(net)
                steps = it.steps
    return given, [str(warning.message) for warning in warned], vars(net).keys(), vars(Net).keys(), steps


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_it_goes_as_it_goes_without_us_in_a_loop_that_only_calls(recording, use):
    observed_in_a_loop(use)
    *alone, _ = observed_in_a_loop(use)
    *recorded, steps = observed_in_a_loop(use, recording)

    assert plain(recorded) == plain(alone)
    assert len(steps) >= 1
