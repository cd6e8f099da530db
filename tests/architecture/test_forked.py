"""A forked program of the tests is what `python` would have made of its command: seen from inside and from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.forked import Forked, ForkServer

TELLS = """
import atexit, os, sys
atexit.register(print, "the end")
print(__name__, sys.argv, sys.path[0], os.getcwd(), input())
print(open("/proc/self/cmdline").read().split("\\0"))
print(sorted(open("/proc/self/environ").read().split("\\0")), sorted(os.environ))
print(os.listdir("/proc/self/fd"))
print("remark", file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    one = ForkServer()
    yield one
    one.close()


@pytest.mark.parametrize("how", ["file", "code", "module"])
def test_a_forked_program_tells_of_itself_what_it_would_alone(how: str, server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "tells.py").write_text(TELLS)
    command = {"file": [str(tmp_path / "tells.py")], "code": ["-c", TELLS], "module": ["-m", "tells"]}[how]
    more = {"cwd": tmp_path, "env": {"PATH": "/bin", "LC_ALL": "C.UTF-8"}, "text": True}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)

    with Forked([*command, "word"], server=server, **more, **pipes) as process:
        out, err = process.communicate("said\n", timeout=30)
    alone = subprocess.run([sys.executable, *command, "word"], input="said\n", capture_output=True, **more)

    assert (process.returncode, out, err) == (alone.returncode, alone.stdout, alone.stderr)


def test_its_end_by_a_signal_is_known(server: ForkServer) -> None:
    with Forked(["-c", "import time; time.sleep(60)"], server=server) as process:
        before = process.poll()
        process.send_signal(signal.SIGKILL)

    assert (before, process.returncode) == (None, -signal.SIGKILL)
