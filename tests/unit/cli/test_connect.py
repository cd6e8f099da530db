"""What the door to httpx leaves to other packages."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

CODE = """
import asyncio
from probe_cli.client.connect import open_client
from probe_cli.endpoint import TcpServer

async def opened():
    async with open_client(TcpServer("127.0.0.1", 1)):
        pass

asyncio.run(opened())
try:
    import sniffio
    print("there")
except ImportError:
    print("missing")
"""


@pytest.mark.parametrize("is_installed", [True, False])
def test_sniffio_stays_where_it_is_installed(is_installed: bool, tmp_path: Path) -> None:
    if is_installed:  # older releases of anyio cannot do without it
        (tmp_path / "sniffio.py").write_text("def current_async_library(): return 'asyncio'\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment)

    expected = "there\n" if is_installed or find_spec("sniffio") else "missing\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
