"""The wheel as users install it: its contents, and its effect on a Python that does not use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = "print([name for name in sys.modules if name.startswith(('probe', '_probe'))])"
WAIT_FOR_RECORDER = """
import glob, os, time
end = time.monotonic() + 20
while time.monotonic() < end:
    for path in glob.glob(f"/dev/shm/probe-{os.getuid()}/{os.getpid()}-*/target.json"):
        print(open(path).read())
        raise SystemExit
    time.sleep(0.01)
raise SystemExit("no recorder after 20 s")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture
def python(wheel: Path, tmp_path: Path) -> Path:
    """A fresh environment with the wheel and nothing else: none of our dependencies either."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "fresh"], check=True)
    python = tmp_path / "fresh" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", str(wheel)], check=True, capture_output=True)
    return python


def run(python: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "PYTHON"))}
    command = [str(python), "-c", code]
    return subprocess.run(command, env=plain | environment, capture_output=True, text=True, timeout=60)


def test_wheel_holds_both_packages_and_the_start_file(wheel: Path) -> None:
    sources = {path.relative_to(ROOT).as_posix() for package in ("probe_agent", "probe_cli")
               for path in (ROOT / package).rglob("*.py")
               if path.name != "_probe_training.py"}  # fmt: skip

    names = set(zipfile.ZipFile(wheel).namelist())

    assert sources <= names
    assert {"probe_training.pth", "_probe_training.py"} <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        "_probe_training.py", "probe_agent", "probe_cli", "probe_training", "probe_training.pth",
    }  # fmt: skip


def test_python_that_does_not_ask_imports_nothing_of_ours(python: Path) -> None:
    code = "import sys; " + OURS

    unset = run(python, code)
    off = run(python, code, PROBE="0")

    assert (unset.stdout, unset.stderr) == ("[]\n", "")
    assert (off.stdout, off.stderr) == ("[]\n", "")


def test_python_with_probe_1_starts_the_recorder_without_any_dependency(python: Path) -> None:
    asked = run(python, WAIT_FOR_RECORDER, PROBE="1")

    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout)["how"] == "planned"


def test_a_broken_installation_says_so_and_lets_python_start(python: Path) -> None:
    start = next(python.parents[1].glob("lib/python*/site-packages/probe_agent/activate/start.py"))
    start.write_text("import no_such_module_anywhere\n")

    broken = run(python, "print('trained')", PROBE="1")

    assert (broken.returncode, broken.stdout) == (0, "trained\n")
    assert "probe: the recorder is not started" in broken.stderr
    assert "Traceback" not in broken.stderr
