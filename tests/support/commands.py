"""The environment of what tests start, and `probe` as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["ROOT", "Probe", "environment", "plain", "probe_in"]

ROOT = Path(__file__).parents[2]
_BIN = Path(sys.executable).parent

Probe = Callable[..., "subprocess.CompletedProcess[str]"]


def plain() -> dict[str, str]:
    """Ours with nothing of Probe set but where the host server of these tests is (conftest.py)."""
    kept = ("PROBE_RUNTIME_DIR",)
    return {name: value for name, value in os.environ.items() if name in kept or not name.startswith("PROBE")}


def environment(**more: str) -> dict[str, str]:
    """Ours, with this environment's `probe` first on the path and nothing of Probe set."""
    unset = plain()
    return unset | {"PATH": f"{_BIN}:{unset['PATH']}"} | more


def probe_in(state: Path) -> Probe:
    """Runs `probe` to its end, with what it writes down in `state`."""

    def run(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["probe", *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            env=environment(XDG_STATE_HOME=str(state), **more),
        )

    return run
