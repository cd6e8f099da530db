"""How the job's models were evaluated since the recorder started, for `torch.evaluations`.

Reads what the training thread has counted (steps/evaluations.py); calls no code of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..names import candidates
from ..source import Recorder
from ..steps.evaluations import is_trained
from ..torch import inventory

__all__ = ["answer"]

READS = True
COLUMNS = ("module", "without_gradients", "active", "with_gradients", "trainable")


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row per model."""
    rows = [
        [
            inventory.name_of(type(module)),
            of_it.without_gradients,
            of_it.active,
            of_it.with_gradients,
            any(map(is_trained, candidates.members(module))),
        ]
        for module, of_it in recorder.evaluations.models.alive()
    ]
    return {"columns": COLUMNS, "rows": rows, "notes": []}
