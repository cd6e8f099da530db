"""An average of the weights whose batch norm keeps its first statistics."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Tables


def job(
    copy: str = "attribute `module` of local `ema`",
    *,
    kind: str = "Net",
    follows: int = 400,
    copied: int | None = 1,
    trained: int = 400,
    evaluated: int = 9,
) -> Tables:
    """A model and a copy of it, with how often parameters and statistics have changed."""
    modules: list[dict[str, Any]] = []
    for module, of_class, place, changed in (
        ("Net", "Net", "local `model`", trained),
        (f"{kind}#2", kind, copy, copied),
    ):
        row = {"parameters": 500, "place": place}
        modules += [
            {**row, "module": module, "class": of_class, "depth": 0, "statistics_versions": None},
            {**row, "module": f"{module}.norm", "class": "BatchNorm2d", "depth": 1, "statistics_versions": changed},
        ]
    return {
        "torch.modules": modules,
        "torch.parameters": [
            {"module": "Net.fc", "parameter": "weight", "versions": 400, "optimizer": "Adam"},
            {"module": f"{kind}#2.fc", "parameter": "weight", "versions": follows, "optimizer": None},
        ],
        "torch.evaluations": [{"module": kind, "without_gradients": evaluated}] * (evaluated > 0),
    }


@pytest.mark.parametrize(
    "tables",
    [
        job(),
        job("local `copied`"),
        job(follows=0),  # by its name: what is written by way of .data is not counted
        job("local `averaged`", kind="AveragedModel"),
    ],
)
def test_an_average_whose_statistics_stay_is_named(judged: Judged, tables: Tables) -> None:
    (found,) = judged("statistics-not-averaged", tables)

    assert found.sentence == "a copy of Net gets its weights, and not the running statistics of batch norm"
    assert "the copy's 1 layers were updated 1 times at most, those of Net 400 times at least" in found.evidence[0]


@pytest.mark.parametrize("tables", [job(copied=300), job(trained=20)])
def test_statistics_that_are_copied_and_those_of_a_young_job_are_fine(judged: Judged, tables: Tables) -> None:
    assert judged("statistics-not-averaged", tables) == []


@pytest.mark.parametrize(
    "tables",
    [
        {},
        job("local `teacher`", follows=0),  # it is to stay as it is
        job("local `swa_model`", kind="AveragedModel", evaluated=0),  # update_bn comes at the end
        job(copied=None),  # without batch norm
    ],
)
def test_other_copies_are_not_judged(judged: Judged, tables: Tables) -> None:
    with pytest.raises(NotApplicable):
        judged("statistics-not-averaged", tables)
