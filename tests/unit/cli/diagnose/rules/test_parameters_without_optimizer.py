"""The optimizer holds other parameters than the model's."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable

from .conftest import Judged
from .looking import Told, looked

SPAN = {"module": "Net", "stage": "backward", "step": 1, "ts": "2026-01-01"}
NET = {"module": "Net", "class": "Net", "depth": 0, "trainable": 100, "parameters": 100, "place": "model"}


def tables(held: int, num_tensors: int = 1, world_size: int = 1) -> dict[str, list[dict[str, object]]]:
    size = {"num_tensors": num_tensors, "parameters": held}
    optimizer = {"optimizer": "Adam", "param_group": 0, "world_size": world_size, **size}
    return {"python.torch_trace": [SPAN], "torch.modules": [NET], "torch.optimizers": [optimizer]}


def test_parameters_that_no_optimizer_holds_are_counted(judged: Judged) -> None:
    (found,) = judged("parameters-without-optimizer", tables(60))

    assert found.sentence == "40 % of Net's trainable parameters are in no optimizer"
    head = [
        parameter("Net.body", "Adam", has_gradient=True, updates=80),
        parameter("Net.head", None, has_gradient=True),
    ]
    (named,) = judged("parameters-without-optimizer", {**tables(60), "torch.parameters": head})
    assert (named.where, named.evidence[1]) == ("Net.head", "in none: Net.head")


def test_an_optimizer_with_shards_of_the_parameters_cannot_be_judged(judged: Judged) -> None:
    """DeepSpeed's ZeRO gives it a flat piece (stages 1 and 2), or nothing between its steps (stage 3)."""
    for shards in (tables(52, world_size=2), tables(0, num_tensors=0)):
        with pytest.raises(NotApplicable):
            judged("parameters-without-optimizer", {**shards, "torch.parameters": [parameter(None, "Adam")]})

    of_the_model = {**tables(52, world_size=2), "torch.parameters": [parameter("Net", "Adam")]}
    (found,) = judged("parameters-without-optimizer", of_the_model)
    assert found.sentence == "48 % of Net's trainable parameters are in no optimizer"


def test_parameters_that_ranks_share_out_among_their_optimizers_are_all_held(judged: Judged) -> None:
    def held(weight: str | None, bias: str | None) -> dict[str, list[dict[str, object]]]:
        each = [parameter("Net.body", weight, updates=9), parameter("Net.body", bias, parameter="bias", updates=9)]
        return {**tables(50), "torch.parameters": each}

    with pytest.raises(NotApplicable):
        judged("parameters-without-optimizer", held("Adam", None), held(None, "Adam"))
    assert len(judged("parameters-without-optimizer", held("Adam", None), held("Adam", None))) == 2


@pytest.mark.parametrize(("versions", "in_use", "num_findings"), [(90, False, 0), (9, False, 0), (9, True, 1)])
def test_a_copy_that_the_job_changes_by_hand_and_a_layer_of_later_need_no_optimizer(
    judged: Judged, versions: int, in_use: bool, num_findings: int
) -> None:
    each = [
        parameter("Net.online", "Adam", parameters=50, has_gradient=True, updates=80),
        parameter("Net.target", None, parameters=50, versions=versions, has_gradient=in_use),
    ]

    assert len(judged("parameters-without-optimizer", {**tables(50), "torch.parameters": each})) == num_findings


def parameter(module: str | None, optimizer: str | None, **more: object) -> dict[str, object]:
    state = {"has_gradient": False, "versions": 1, "steps_seen": 90, "updates": None}
    return {"module": module, "parameter": "weight", "trainable": True, "optimizer": optimizer, **state, **more}


def test_parameters_that_two_optimizers_hold_count_once(judged: Judged) -> None:
    twice = tables(50)
    twice["torch.optimizers"] *= 2
    halves = [
        parameter("Net.actor", "Adam", parameters=50, has_gradient=True, updates=80),
        parameter("Net.critic", None, parameters=50, has_gradient=True),
    ]

    (found,) = judged("parameters-without-optimizer", {**twice, "torch.parameters": halves})

    assert found.sentence == "50 % of Net's trainable parameters are in no optimizer"
    assert found.where == "Net.critic"
    held = [halves[0], {**halves[1], "optimizer": "Adam#2"}]
    assert judged("parameters-without-optimizer", {**twice, "torch.parameters": held}) == []


@pytest.mark.parametrize(("other", "said"), [("Net#2", "of Net#2"), (None, "of a model that is gone")])
def test_an_optimizer_of_another_model_of_the_same_size_is_named(judged: Judged, other: str | None, said: str) -> None:
    parameters = [parameter("Net", None, has_gradient=True), parameter(other, "Adam")]

    (found,) = judged("parameters-without-optimizer", {**tables(100), "torch.parameters": parameters})

    assert found.sentence == f"Adam holds the parameters {said}, and gradients go to those of Net"


def test_a_model_that_is_not_called_itself_is_known_by_its_gradients(judged: Judged) -> None:
    (found,) = judged(
        "parameters-without-optimizer",
        {
            **tables(held=10),
            "python.torch_trace": [{**SPAN, "module": "Forecaster"}],
            "torch.parameters": [parameter("Net.net", None, has_gradient=True), parameter(None, "Adam")],
        },
    )

    assert found.sentence == "Adam holds the parameters of a model that is gone, and gradients go to those of Net"


def test_parameters_that_were_trained_before_need_a_second_look(judged: Judged) -> None:
    parameters = [parameter("Net", None, has_gradient=True), parameter("Teacher", "Adam", versions=150)]

    found = judged("parameters-without-optimizer", {**tables(100), "torch.parameters": parameters})

    assert [one.certainty for one in found] == [Certainty.SUSPECTED]
    assert looked("parameters-without-optimizer", Told(1, changes_of_0=True), found) == []
    (confirmed,) = looked("parameters-without-optimizer", Told(1, changes_of_0=False), found)
    assert confirmed.certainty is Certainty.LIKELY


def test_a_loss_network_with_gradients_beside_a_model_that_learns_is_fine(judged: Judged) -> None:
    loss_network = parameter("VGG", None, has_gradient=True)

    def told(**learns: object) -> list[Finding]:
        parameters = [loss_network, parameter("Net", "Adam", **learns)]
        return judged("parameters-without-optimizer", {**tables(100), "torch.parameters": parameters})

    assert told(has_gradient=True) == []
    # Its gradients may just have been cleared: what changes meanwhile tells.
    assert looked("parameters-without-optimizer", Told(1, changes_of_0=True), told(updates=80)) == []


def test_a_layer_that_was_replaced_after_the_optimizer_was_made_is_named(judged: Judged) -> None:
    body = parameter("Net.0", "Adam", has_gradient=True, updates=80, parameters=90)
    head = parameter("Net.6", None, has_gradient=True, parameters=10)
    old = parameter(None, "Adam", parameters=10)

    (found,) = judged("parameters-without-optimizer", {**tables(100), "torch.parameters": [body, head, old]})

    assert found.sentence == "Adam holds parameters that are in no model, and Net.6 is in no optimizer"
    assert found.share == pytest.approx(0.1)
    for fine in ([body, head], [body, old], [body, head, {**old, "updates": 80}]):
        assert judged("parameters-without-optimizer", {**tables(100), "torch.parameters": fine}) == []


def test_layers_in_a_plain_list_that_get_gradients_are_named(judged: Judged) -> None:
    body = parameter("Net.0", "Adam", has_gradient=True, updates=80, parameters=90, registered=True)
    expert = parameter("Net.experts[0].1", None, has_gradient=True, parameters=10, registered=False)

    (found,) = judged("parameters-without-optimizer", {**tables(100), "torch.parameters": [body, expert]})

    assert found.sentence == "layers in a plain list or dict, Net.experts, get gradients and are in no optimizer"
    assert found.share == pytest.approx(0.1)
    assert found.try_first == "self.experts = torch.nn.ModuleList(...)"
    for fine in ({"has_gradient": False}, {"has_gradient": None}, {"optimizer": "Adam"}, {"trainable": False}):
        parameters = [body, {**expert, **fine}]
        assert judged("parameters-without-optimizer", {**tables(100), "torch.parameters": parameters}) == []


def test_an_optimizer_with_all_of_them_is_fine(judged: Judged) -> None:
    assert judged("parameters-without-optimizer", tables(100)) == []


def test_without_a_model_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("parameters-without-optimizer", {})


def test_an_optimizer_whose_model_was_replaced_as_it_trained_needs_a_second_look(judged: Judged) -> None:
    parameters = [parameter("Net", None, has_gradient=True), parameter(None, "Adam", versions=150, updates=149)]

    found = judged("parameters-without-optimizer", {**tables(100), "torch.parameters": parameters})

    assert [one.certainty for one in found] == [Certainty.SUSPECTED]
    assert looked("parameters-without-optimizer", Told(1, changes_of_0=True), found) == []
    (confirmed,) = looked("parameters-without-optimizer", Told(1, changes_of_0=False), found)
    assert confirmed.sentence == "Adam holds the parameters of a model that is gone, and gradients go to those of Net"
