"""Notes on tables without rows: one for each reason, with the targets it holds for."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from probe_agent.sql.tables.notes import why_empty
from probe_agent.targets import Target

NO_TORCH = ("torch is not imported in this process", "probe list")


def target(folder: Path, rank: int, tables: object, alive: bool = True) -> Target:
    folder = folder / str(rank)
    folder.mkdir()
    content = tables if isinstance(tables, str) else json.dumps({"since": time.time() - 30, "tables": tables})
    (folder / "awaited.json").write_text(content)
    identity = {"host_pid": 100 + rank, "pid": 100 + rank, "rank": rank, "world_size": 3}
    return Target(str(folder), identity, None, is_held=alive)


def test_targets_and_tables_that_wait_for_the_same_share_a_note(tmp_path: Path) -> None:
    reasons = {"python.steps": NO_TORCH, "python.torch_trace": NO_TORCH}
    first, second = target(tmp_path, 0, reasons), target(tmp_path, 1, reasons)
    third = target(tmp_path, 2, {"python.steps": ("SGD has not stepped yet", "wait")})

    notes, tables = why_empty(
        [(first, "python.steps"), (second, "python.steps"), (third, "python.steps")], num_targets=3
    )
    (both,), _ = why_empty([(first, "python.steps"), (first, "python.torch_trace")], num_targets=1)

    assert notes[0].startswith("python.steps of pid 100 (rank 0), pid 101 (rank 1): no rows: torch is not imported")
    assert (
        "of pid 102 (rank 2): no rows: SGD has not stepped yet (the recorder started 30 s ago); try: wait" in notes[1]
    )
    assert tables == {"python.steps"}
    assert both.startswith("python.steps, python.torch_trace: no rows: torch")


def test_a_dead_target_keeps_its_reason_without_an_age(tmp_path: Path) -> None:
    dead = target(tmp_path, 0, {"python.steps": NO_TORCH}, alive=False)

    (note,), _ = why_empty([(dead, "python.steps")], num_targets=1)

    assert note == "python.steps: no rows: torch is not imported in this process; try: probe list"


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"since": "x", "tables": {}}', '{"since": 1, "tables": {"python.steps": 7}}', "\xff"]
)
def test_a_damaged_file_is_no_reason_and_no_error(tmp_path: Path, content: str) -> None:
    damaged = target(tmp_path, 0, content)

    assert why_empty([(damaged, "python.steps")], num_targets=1) == ([], set())


def test_a_table_that_is_healthy_when_empty_has_no_note(tmp_path: Path) -> None:
    healthy = target(tmp_path, 0, {})

    assert why_empty([(healthy, "probe.errors")], num_targets=1) == ([], set())


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    sly = target(tmp_path, 0, {"python.steps": NO_TORCH})
    path = Path(sly.folder) / "awaited.json"
    os.rename(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")

    assert why_empty([(sly, "python.steps")], num_targets=1) == ([], set())
