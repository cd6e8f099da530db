"""Plots of a recorded job: on the terminal, in a file, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.recorded_job import RecordedJob

from .conftest import Ask

LOSS = "SELECT step, loss FROM python.steps WHERE rank = 0"


def test_a_plot_of_all_ranks_names_them(job: RecordedJob, ask: Ask) -> None:
    done = ask(*job.named, "plot", "SELECT step, rank, epoch(ts) - 1.79e9 - rank AS t FROM python.steps")

    assert done.code == 0, done.err
    assert all(f"rank {rank}" in done.out.splitlines()[-1] for rank in range(4))
    assert "\x1b" not in done.out


def test_a_file_is_a_picture(job: RecordedJob, ask: Ask, tmp_path: Path) -> None:
    png, svg = tmp_path / "a.png", tmp_path / "a.svg"

    done = [ask(*job.named, "plot", LOSS, "-o", str(path), "--title", "<loss>") for path in (png, svg)]

    assert [one.code for one in done] == [0, 0], done
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in svg.read_text()
    assert "<loss>" not in svg.read_text()


def test_what_cannot_be_drawn_is_refused(
    job: RecordedJob, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extension = ask(*job.named, "plot", LOSS, "-o", str(tmp_path / "a.gif"))
    empty = ask(*job.named, "plot", f"{LOSS} AND step < 0")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    missing = ask(*job.named, "plot", LOSS, "-o", str(tmp_path / "a.png"))

    assert (extension.code, empty.code, missing.code) == (2, 1, 2)
    assert "unsupported file extension" in extension.err
    assert "the answer has no rows" in empty.err
    assert "pip install 'probe-training[plot]'" in missing.err
    assert list(tmp_path.iterdir()) == []
