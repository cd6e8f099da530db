"""`torch.modules`, `torch.optimizers` and `torch.dataloaders` of a job of known sizes."""

from __future__ import annotations

import json

import pytest
from support.waiting import until

from tests.integration.server.conftest import Host

pytestmark = pytest.mark.torch
MIB = 2**20


def test_modules_are_listed_as_a_tree_with_their_sizes(host: Host) -> None:
    rows = host.rows(
        "SELECT module, class, depth, parameters, own_parameters, trainable, buffers, dtype, device, training, compiled"
        " FROM torch.modules"
    )
    [[memory, own, gradients]] = host.rows("SELECT memory, own_memory, gradients FROM torch.modules WHERE depth = 0")

    first, norm, last = 8 * 16 + 16, 2 * 16, 16 + 1
    assert rows == [
        ["Net", "Net", 0, first + norm + last, 0, first + norm + 16, 33, "float32, float64, int64", "cpu", True, False],
        ["Net.first", "Linear", 1, first, first, first, 0, "float32", "cpu", True, False],
        ["Net.norm", "BatchNorm1d", 1, norm, norm, norm, 33, "float32, int64", "cpu", True, False],
        ["Net.tied", "Linear", 1, 128, 128, 128, 0, "float32", "cpu", True, False],
        ["Net.last", "Linear", 1, last, last, 16, 0, "float64", "cpu", True, False],
    ]
    assert memory * MIB == 4 * (first + norm) + 8 * last + 4 * 32 + 8  # the counter of BatchNorm is an int64
    assert own == 0
    assert gradients * MIB == 4 * (first + norm) + 8 * 16


def test_the_place_of_a_module_is_the_nearest_to_what_runs(host: Host) -> None:
    def place() -> str:
        [[found]] = host.rows("SELECT place FROM torch.modules WHERE depth = 0")
        return str(found)

    # While the job is in forward(), its `self` is nearer; most of the time it sleeps between two steps.
    until(lambda: place().startswith("attribute `net` of local `"), says=place)


def test_optimizers_are_listed_by_parameter_group(host: Host) -> None:
    rows = host.rows(
        "SELECT optimizer, param_group, lr, num_tensors, parameters, dtype, state_memory, options FROM torch.optimizers"
    )

    assert [row[:6] for row in rows] == [
        ["SGD", 0, 0.25, 2, 144, "float32"],
        ["SGD", 1, 0.125, 1, 16, "float64"],
    ]
    assert [row[6] * MIB for row in rows] == [4 * 144, 8 * 16]  # type: ignore[operator]  # momentum buffers
    assert json.loads(str(rows[0][7]))["momentum"] == 0.5


def test_loaders_are_listed_with_their_workers(host: Host) -> None:
    answer = host.query("SELECT * FROM torch.dataloaders")

    [row] = answer["rows"]  # type: ignore[misc]
    shown = dict(zip([column["name"] for column in answer["columns"]], row, strict=True))  # type: ignore[attr-defined]
    assert {name: shown[name] for name in ("dataset", "batch_size", "num_workers", "workers", "prefetch_factor")} == {
        "dataset": "Samples",
        "batch_size": 8,
        "num_workers": 2,
        "workers": 2,
        "prefetch_factor": 3,
    }
    assert shown["persistent_workers"]
    assert not shown["pin_memory"]
    assert shown["sampler"] == "SequentialSampler"
    assert shown["place"].startswith("local `loader` of main() at known_training.py:")
    assert answer["notes"] == []
