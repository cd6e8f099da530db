"""Unusual interpreters: stripped of their symbols, on another C library, or with nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from probe_agent import inject

from .conftest import detach
from .programs import FOREVER, SYSTEM_PYTHON, program, refused

#: Only a Python that has everything in its own file can be changed by changing a copy of it.
NAME = b"\0Py_AddPendingCall\0"


def without_names(folder: Path) -> Path:
    """A copy of a Python that exports none of the functions that an attach needs, and otherwise runs the same."""
    if not os.access(SYSTEM_PYTHON, os.R_OK) or NAME not in Path(SYSTEM_PYTHON).read_bytes():
        pytest.skip(f"{SYSTEM_PYTHON} is not a Python with everything in one file")
    data = Path(SYSTEM_PYTHON).read_bytes()
    for name in (b"Py_AddPendingCall", b"PyRun_SimpleString", b"PyGILState_Ensure", b"Py_IsInitialized"):
        data = data.replace(b"\0" + name + b"\0", b"\0X" + name[1:] + b"\0")
    copy = folder / "python3"
    copy.write_bytes(data)
    copy.chmod(0o755)
    return copy


@pytest.mark.situation("a Python without symbols", "refused; the missing name is shown")
def test_a_python_that_exports_no_names(tmp_path: Path) -> None:
    with (
        program(FOREVER, python=str(without_names(tmp_path))) as process,
        refused(process.pid, "does not tell where its functions are", "PROBE=1"),
    ):
        pass


@pytest.mark.situation("on musl", "refused; musl is named, by the name of its loader")
def test_a_python_whose_loader_is_that_of_musl(tmp_path: Path) -> None:
    loader = Path(f"/lib64/ld-linux-{platform.machine().replace('_', '-')}.so.2")
    if not loader.exists() or not os.access(SYSTEM_PYTHON, os.X_OK):
        pytest.skip("no glibc loader at its usual place")
    # It is glibc's, under the name by which musl's is known: hardly any machine has a Python on musl beside others.
    musl = tmp_path / "ld-musl-x86_64.so.1"
    shutil.copy(loader, musl)
    with (
        program(FOREVER, python=SYSTEM_PYTHON, before=(str(musl),)) as process,
        refused(process.pid, f"musl ({musl})", "PROBE=1"),
    ):
        pass


@pytest.mark.situation("a program of musl that is not Python", "refused")
def test_a_real_program_of_musl(tmp_path: Path) -> None:
    if shutil.which("musl-gcc") is None:
        pytest.skip("musl-tools are not installed")
    source, binary = tmp_path / "pause.c", tmp_path / "pause"
    source.write_text(
        '#include <stdio.h>\n#include <unistd.h>\nint main() { puts("ready"); fflush(stdout); pause(); }\n'
    )
    subprocess.run(["musl-gcc", str(source), "-o", str(binary)], check=True)
    with program("", python=str(binary)) as process, refused(process.pid, "musl", "probe list"):
        pass


@pytest.mark.situation("a virtual environment without any package", "works")
def test_a_virtual_environment_with_nothing_in_it(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv/bin/python"
    with program("import sys\nassert not any('site-packages' in name and __import__('os').listdir(name)"
                 " for name in sys.path)" + FOREVER, python=str(python)) as process:  # fmt: skip
        attached = inject.attach(process.pid)
        detach(attached)

    assert not attached.already


def test_doctor_says_of_any_program_that_it_is_not_python() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        checks = inject.examine(process.pid)
        process.kill()

    assert [check.name for check in checks if not check.ok] in (["python"], ["python", "process"])
