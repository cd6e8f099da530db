"""Embeddings whose every row is updated in each step."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps

USERS, ITEMS, TOWER = "NCF.user", "NCF.item", "NCF.tower.0"


def rows(steps: Steps, *, optimizer_s: float = 0.06, indices: int = 1024, **others: Any) -> dict[str, Any]:
    held: dict[str, Any] = {"trainable": True, "optimizer": "Adam", "parameter": "weight", **others}
    return {
        "torch.parameters": [
            {**held, "module": USERS, "parameters": 280_000 * 32, "shape": "280000x32"},
            {**held, "module": ITEMS, "parameters": 160_000 * 32, "shape": "160000x32"},
            {**held, "module": TOWER, "parameters": 9_216, "shape": "96x96", "optimizer": "Adam"},
        ],
        "torch.modules": [
            {"module": USERS, "class": "Embedding", "own_parameters": 280_000 * 32},
            {"module": ITEMS, "class": "Embedding", "own_parameters": 160_000 * 32},
            {"module": TOWER, "class": "Linear", "own_parameters": 9_312},
        ],
        "python.torch_trace": [
            {"module": module, "step": 20, "stage": "forward", "phase": "train", "input_shapes": f"{indices}x{times}"}
            for module, times in ((USERS, 1), (ITEMS, 4))
        ],
        "python.steps": steps(50, duration=0.1, optimizer=optimizer_s, backward=0.02, sampled=False),
    }


def test_tables_of_which_a_step_uses_few_rows_are_named_with_their_part_of_the_time(
    judged: Judged, steps: Steps
) -> None:
    (found,) = judged("embedding-dense", rows(steps))

    assert found.sentence == "Adam updates every row of embeddings, of which a step uses few: 60 % of the time"
    assert found.where == USERS
    assert found.share == pytest.approx(0.6, abs=0.01)
    assert found.evidence[1] == f"{ITEMS}: 160,000 rows, at most 4,096 of them used in a step"


def test_tables_that_are_used_or_cost_little_are_fine(judged: Judged, steps: Steps) -> None:
    assert judged("embedding-dense", rows(steps, indices=60_000)) == []
    assert judged("embedding-dense", rows(steps, optimizer_s=0.01)) == []
    with pytest.raises(NotApplicable):
        judged("embedding-dense", rows(steps, optimizer="SparseAdam"))


def test_a_table_that_is_the_output_layer_as_well_is_not_judged(judged: Judged, steps: Steps) -> None:
    told = rows(steps)
    for size in (280_000, 160_000):
        told["torch.modules"].append({"module": f"NCF.out{size}", "class": "Linear", "own_parameters": size * 32})

    with pytest.raises(NotApplicable):
        judged("embedding-dense", told)


def test_without_a_sampled_step_nothing_is_known_of_its_indices(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("embedding-dense", {**rows(steps), "python.torch_trace": []})
