"""Console examples of the docs, run in order against the demo job.

In a ```console block a line that begins with `$ ` is a command, and the lines after it are its output: each must be
printed, in order. A command without output only has to succeed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import plain
from support.waiting import until

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)

PAGES = ("quickstart.md", "walkthrough.md", "nan.md", "memory.md")

pytestmark = pytest.mark.torch


def examples(page: Path) -> list[tuple[str, list[str]]]:
    """Return every command of a page with the output shown for it."""
    found: list[tuple[str, list[str]]] = []
    for block in BLOCK.findall(page.read_text()):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """A shell environment with $PID set to a demo job that has done 50 steps."""
    unset = plain()
    command = [sys.executable, str(ROOT / "docs" / "demo" / "train_gpt.py"), "--steps", "1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=unset) as training:
        try:
            assert training.stdout is not None
            for line in training.stdout:
                if line.startswith("step"):
                    break
            bin_folder = str(Path(sys.executable).parent)
            yield unset | {"PID": str(training.pid), "PATH": f"{bin_folder}:{unset['PATH']}"}
        finally:
            training.kill()


@pytest.mark.parametrize(
    ("command", "shown"),
    [example for page in PAGES for example in examples(ROOT / "docs" / page)],
)
def test_example_prints_what_the_page_shows(
    environment: dict[str, str], command: str, shown: list[str], tmp_path: Path
) -> None:
    def run() -> subprocess.CompletedProcess[str] | None:
        done = subprocess.run(
            ["bash", "-c", command], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        # Right after the attach: the hint is to wait for the first step, or the first one that is sampled.
        is_early = any(hint in done.stderr for hint in ("no sampled step has ended", "the first step has not ended"))
        return None if is_early else done

    done = until(run)

    assert done.returncode == 0, done.stdout + done.stderr
    printed = iter(done.stdout.splitlines())  # an iterator: `in` goes on where the last line was found
    missing = [line for line in shown if line not in printed]
    assert missing == [], done.stdout


def test_the_page_about_notebooks_runs(environment: dict[str, str], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "notebooks.md").read_text()
    cells = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    script = tmp_path / "cells.py"
    patient = "\n".join(cells).replace("diagnose()", "diagnose(timeout_s=30)")  # the machine may be busy
    script.write_text(patient.replace("4711", environment["PID"]) + "\nassert len(frame) > 0\n")

    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=90)

    assert done.returncode == 0, done.stdout + done.stderr
