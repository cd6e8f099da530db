"""A host server that is told to end while it starts: it ends, whatever it is doing just then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: The signal comes inside a callback, as Python has them during imports: an exception there is printed and ignored.
STARTS = """
import os, signal, sys
from probe_agent.server import hosting
from probe_cli.main import run

class Callback:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(10))

def late(*arguments):
    Callback()
    return real(*arguments)

where, name = {place}
real = getattr(where, name)
setattr(where, name, late)
sys.exit(run(["serve", "--unix", sys.argv[1]]))
"""


@pytest.mark.parametrize("place", ["hosting.Hosting, '_run_loop'", "hosting.asyncio, 'run'"])
def test_a_signal_during_the_start_ends_the_server(place: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTS.format(place=place), str(tmp_path / "host.sock")],
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "host.sock").exists()
