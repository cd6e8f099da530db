"""The wheels for a machine with a GPU and no network: all that Probe needs, each in one version."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_dependency_of_the_project_is_among_the_wheels_for_a_gpu() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    listed = project.partition("\ndependencies = [")[2].partition("\n]")[0]
    needed = {re.split(r"[^\w-]", text)[0] for text in re.findall(r'^    "([^"]+)"', listed, re.MULTILINE)}
    lines = (ROOT / "tests" / "gpu" / "requirements.txt").read_text().splitlines()
    wheels = {line.partition("==")[0] for line in lines if not line.startswith("#")}

    assert len(needed) > 8
    assert needed | {"pytest", "pytest-timeout"} <= wheels
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", line) for line in lines if not line.startswith("#"))
