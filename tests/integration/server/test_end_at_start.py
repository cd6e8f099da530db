"""A host server that is told to end while it starts ends, even if Python ignores the exception of its handler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

#: The signal comes inside a callback, as Python has them during imports: an exception there is printed and ignored.
STARTS = """
import os, signal, sys
import uvicorn
from probe_cli.main import run

class Callback:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(10))

loop_factory = uvicorn.Config.get_loop_factory

def late(config):
    Callback()
    return loop_factory(config)

uvicorn.Config.get_loop_factory = late
sys.exit(run(["serve", "--unix", sys.argv[1]]))
"""


def test_a_signal_that_python_swallows_ends_the_server(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTS, str(tmp_path / "host.sock")], capture_output=True, text=True, timeout=30
    )

    assert "SystemExit" in done.stderr  # it was ignored
    assert done.returncode == 0
    assert not (tmp_path / "host.sock").exists()
