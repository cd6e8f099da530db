"""`make demo` proves its claims."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.torch
@pytest.mark.timeout(240)
def test_demo_proves_that_the_job_was_left_unharmed() -> None:
    demo = [sys.executable, str(ROOT / "docs" / "demo" / "demo.py")]

    done = subprocess.run(demo, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("proved:") == 4
