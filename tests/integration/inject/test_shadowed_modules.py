"""Files of the job with names of standard library modules stay the job's: we neither run nor hide them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import plain
from support.waiting import until

from probe_agent import inject

from .conftest import ask, detach, installed_pythons

#: Names that the recorder imports, that these import in turn, or that C code looks up.
NAMES = [
    *("__future__", "_compat_pickle", "_strptime", "array", "ast", "base64", "binascii", "bisect", "collections"),
    *("contextlib", "copyreg", "ctypes", "difflib", "enum", "errno", "faulthandler", "fcntl", "functools", "heapq"),
    *("itertools", "json", "keyword", "linecache", "math", "mmap", "numbers", "opcode", "operator", "pickle"),
    *("reprlib", "resource", "select", "selectors", "signal", "socket", "struct", "textwrap", "token", "tokenize"),
    *("traceback", "types", "typing", "warnings", "weakref"),
]
ROOT = Path(__file__).parents[3]
#: A job in the same folder, which itself comes to its own modules only when it is told to.
JOB = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
class Watch:
    asked = []
    def find_spec(self, name, path=None, target=None):
        self.asked.append(name)
sys.meta_path.insert(0, Watch())
START
print("ready", flush=True)
while not os.path.exists("stop"):
    time.sleep(0.01)
found, before = list(Watch.asked), set(sys.modules)
import socket, traceback
print([socket.WHOSE, traceback.WHOSE])
print(sorted(found))
"""


def shadowed(folder: Path) -> None:
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open('run-{name}', 'w').close()\nWHOSE = 'the job'\n")


@pytest.mark.situation("files called `socket.py`, `traceback.py` … in its folder", "not run, and still the job's")
@pytest.mark.parametrize("python", installed_pythons(), ids=lambda python: python.split("/")[-3])
def test_the_standard_library_is_the_standard_library(python: str, tmp_path: Path) -> None:
    _check(tmp_path, [python], "", planned=False)


@pytest.mark.situation("the same, and the recorder started with the job", "not run, and still the job's")
def test_a_planned_start_too(tmp_path: Path) -> None:
    start = f"sys.path.append({str(ROOT)!r})\nimport probe_agent\nprobe_agent.start()\nWatch.asked.clear()"
    _check(tmp_path, [sys.executable], start, planned=True)


def _check(tmp_path: Path, python: list[str], start: str, *, planned: bool) -> None:
    jobs = tmp_path / "job"
    jobs.mkdir()
    shadowed(jobs)
    script = tmp_path / "train.py"
    script.write_text(JOB.replace("START", start))
    unset = plain()
    with subprocess.Popen(
        [*python, "-S", str(script), str(jobs)], cwd=tmp_path, env=unset, text=True, stdout=-1, stderr=-1
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()
            if planned:
                until(lambda: any(Path("/dev/shm").glob(f"probe-*/{process.pid}-*/target.json")), 30.0)
            attached = inject.attach(process.pid)
            assert attached.already is planned
            assert ask(attached.folder, "stacks", process.pid)["threads"]
            detach(attached)
            (tmp_path / "stop").touch()
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()

    assert errors == ""
    whose, asked = output.splitlines()
    assert json.loads(whose.replace("'", '"')) == ["the job"] * 2
    assert sorted(path.name for path in tmp_path.glob("run-*")) == ["run-socket", "run-traceback"]
    assert planned or asked == "[]"
