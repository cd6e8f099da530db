"""Origin of a figure: the lines about machine, versions and commit above every table.

Runs once per report, before or after the measured program, never beside it.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

__all__ = ["commit", "provenance"]

ROOT = Path(__file__).parents[1]


def provenance(arguments: Sequence[str] = ()) -> str:
    """Return machine, versions, commit, command, and how busy the machine was otherwise."""
    name = sys.modules["__main__"].__spec__.name.removesuffix(".__main__")
    command = shlex.join(["python", "-m", name, *(arguments or sys.argv[1:])])
    busy = ", ".join(f"{load:.2f}" for load in os.getloadavg())
    return (
        f"Command: `{command}`, commit {commit()}, {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC.  \n"
        f"Machine: {os.cpu_count()}-core {_processor()}{' VM' if _is_virtual() else ''}, Linux {platform.release()}, "
        f"Python {platform.python_version()}, torch {version('torch')}, one thread. "
        f"Niceness {os.nice(0)}; load of the machine at the end: {busy}."
    )


def commit() -> str:
    """Return the commit that is measured, with a `+` where files differ from it."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown, since this is a plain folder"
    return done.stdout.strip()


def _cpuinfo() -> dict[str, str]:
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def _processor() -> str:
    return _cpuinfo().get("model name", platform.machine())


def _is_virtual() -> bool:
    return "hypervisor" in _cpuinfo().get("flags", "").split()
