"""The environment of what tests start, and `probe` as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .forked import Forked, ForkServer

__all__ = ["ROOT", "Probe", "environment", "plain", "probe", "probe_in"]

ROOT = Path(__file__).parents[2]
_BIN = Path(sys.executable).parent
COMMAND_S = 90.0
#: The modules that most commands import.
_COMMANDS = ForkServer("probe_cli.main", "probe_cli.session", "probe_agent.inject")

Probe = Callable[..., "subprocess.CompletedProcess[str]"]


def plain() -> dict[str, str]:
    """Ours with nothing of Probe set but what these tests share (conftest.py)."""
    kept = ("PROBE_DEAD_HOURS", "PROBE_RUNTIME_DIR")
    return {name: value for name, value in os.environ.items() if name in kept or not name.startswith("PROBE")}


def environment(**more: str) -> dict[str, str]:
    """Ours, with this environment's `probe` first on the path and nothing of Probe set."""
    unset = plain()
    return unset | {"PATH": f"{_BIN}:{unset['PATH']}"} | more


def probe(*arguments: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `probe` to its end, with more in its environment."""
    command = [str(_BIN / "probe"), *arguments]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with Forked(command, server=_COMMANDS, text=True, env=environment(**environ), **pipes) as process:
        try:
            out, err = process.communicate(stdin, COMMAND_S)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def probe_in(state: Path) -> Probe:
    """Return `probe` with its records in `state`."""
    return partial(probe, XDG_STATE_HOME=str(state))
