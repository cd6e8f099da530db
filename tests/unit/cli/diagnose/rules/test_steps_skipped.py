"""The loop goes on, and the optimizer does not step."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence

from .conftest import Judged, Steps


def under_way(**columns: Any) -> list[dict[str, Any]]:
    return [{"number": 300, "age": 30.0, "micro_batches": 2000, **columns}]


def test_a_guard_that_drops_every_batch_is_named(judged: Judged, steps: Steps) -> None:
    tables = {"python.steps": steps(300, micro_batches=1), "python.current_step": under_way()}

    (found,) = judged("steps-skipped", tables)

    assert found.sentence == "the optimizer has not stepped for 30 s, while backward was called 2,000 times"
    assert found.since_step == 300


def test_accumulation_and_a_long_step_are_fine(judged: Judged, steps: Steps) -> None:
    accumulates = {"python.steps": steps(300, micro_batches=512), "python.current_step": under_way()}
    evaluates = {"python.steps": steps(300, micro_batches=1), "python.current_step": under_way(micro_batches=1)}
    begins = {"python.steps": steps(300, micro_batches=1), "python.current_step": under_way(micro_batches=20, age=0.1)}
    for fine in (accumulates, evaluates, begins):
        assert judged("steps-skipped", fine) == []


def test_without_a_step_there_is_nothing_to_compare_with(judged: Judged) -> None:
    with pytest.raises(NoEvidence):
        judged("steps-skipped", {"python.current_step": under_way()})
