"""Rows of `python.collectives` as a comparison reads them."""

from __future__ import annotations

import duckdb
import pytest

from probe_cli.cluster.compare.questions import CALLS


@pytest.mark.parametrize(
    ("seen_by", "state", "phase", "is_waited_for_in_cpp"),
    [
        ("flight recorder", "completed", "backward", True),
        ("python", "launched", "backward", True),  # by a communication hook of DDP
        ("python", "launched", "forward", False),
        ("python", "launched", None, False),
        ("python", "completed", "backward", False),
        ("python", "waiting", "backward", False),
    ],
)
def test_the_reducer_waits_for_what_a_hook_has_launched(
    seen_by: str, state: str, phase: str | None, is_waited_for_in_cpp: bool
) -> None:
    expression, _ = CALLS["by_cpp"]

    (found,) = duckdb.execute(
        f"SELECT {expression} FROM (SELECT ? AS seen_by, ? AS state, ? AS phase)", [seen_by, state, phase]
    ).fetchone() or (None,)

    assert found is is_waited_for_in_cpp
