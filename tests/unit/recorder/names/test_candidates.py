"""The obvious candidates for a name; with classes that only look like torch's."""

from __future__ import annotations

import gc
from typing import Any, ClassVar

from probe_agent.recorder.names import candidates


def _pretend(qualified: str) -> type:
    module, _, name = qualified.rpartition(".")
    return type(name, (), {"__module__": module})


Module = _pretend("torch.nn.modules.module.Module")
Optimizer = _pretend("torch.optim.optimizer.Optimizer")
Parameter = _pretend("torch.nn.parameter.Parameter")
_Loss = type("_Loss", (Module,), {"__module__": "torch.nn.modules.loss"})


class Net(Module):  # type: ignore[misc,valid-type]
    def __init__(self, **children: Any) -> None:
        self._modules = children
        self._parameters = {"weight": 1}


class Metric(Net):
    def __init__(self) -> None:
        super().__init__()
        self._parameters = {}


class MSELoss(_Loss):  # type: ignore[misc,valid-type]
    _modules: ClassVar[Any] = {}


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def test_the_outermost_module_is_the_model() -> None:
    inner = Net()
    outer = Net(inner=inner)
    roots = [("local of main() at train.py:4", {"layer": inner, "net": outer, "metric": Metric()})]

    found = candidates.search("model", roots)

    assert found == [(outer, "local `net` of main() at train.py:4")]


def test_an_attribute_with_the_very_name_beats_its_rivals() -> None:
    model, ema = Net(), Net()
    roots = [("local of main() at train.py:4", {"run": Holder(parts={"ema": ema}, model=model)})]

    found = candidates.search("model", roots)

    assert found == [(model, "attribute `model` of local `run` of main() at train.py:4")]


def test_several_candidates_are_all_named() -> None:
    roots = [("global of __main__", {"generator": Net(), "discriminator": Net()})]

    places = [place for _, place in candidates.search("model", roots)]

    assert places == ["global `generator` of __main__", "global `discriminator` of __main__"]


def test_nothing_to_find_finds_nothing() -> None:
    roots = [("global of __main__", {"text": "model", "numbers": list(range(5000)), "loss": MSELoss})]

    assert candidates.search("model", roots) == []
    assert candidates.search("optimizer", roots) == []


def test_objects_that_contain_themselves_and_huge_lists_end_the_search() -> None:
    loop: list[Any] = []
    loop.append(loop)
    holder = Holder(many=[Holder(deep=[Holder() for _ in range(200)]) for _ in range(200)])
    holder.self = holder  # type: ignore[attr-defined]

    assert candidates.search("optimizer", [("global of __main__", {"a": loop, "b": holder})]) == []


def test_an_optimizer_in_a_list_is_found_by_its_way() -> None:
    only = Optimizer()
    roots = [("global of __main__", {"state": Holder(optimizers=[only])})]

    found = candidates.search("optimizer", roots)

    assert found == [(only, "item [0] of attribute `optimizers` of global `state` of __main__")]


def test_the_items_of_a_dict_are_listed_while_the_job_adds_to_it() -> None:
    growing = {f"key{at}": at for at in range(5_000)}

    def add(phase: str, info: dict[str, int]) -> None:
        if len(growing) < 5_002:
            growing[f"more{len(growing)}"] = 0

    gc.callbacks.append(add)
    try:
        listed = candidates.items(growing, 5_000)
        newest = candidates.items(growing, 2, newest=True)
    finally:
        gc.callbacks.remove(add)

    assert listed == [(f"key{at}", at) for at in range(5_000)]
    assert newest == list(growing.items())[-2:]
    assert candidates.items(growing, 3) == [("key0", 0), ("key1", 1), ("key2", 2)]


def test_modules_and_parameters_in_plain_containers_are_not_registered() -> None:
    layers, by_name, scale = [Net(), Net()], {"b": Net(), 3.0: Net()}, Parameter()
    model = Net(inner=layers[1])
    vars(model).update(experts=layers, heads=by_name, others=(7, scale, "text"), one=Net())

    found = list(candidates.unregistered(model, "Net"))

    assert found == [
        ("Net.experts[0]", layers[0]),
        ("Net.experts[1]", layers[1]),  # registered too: the caller knows
        ("Net.heads['b']", by_name["b"]),
        ("Net.others[1]", scale),
    ]
