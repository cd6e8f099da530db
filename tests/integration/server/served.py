"""`probe serve` as users start it, with its own tokens, and the command line as its client."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from support.commands import environment
from support.forked import Forked
from support.hosts import SERVERS
from support.ports import free_address
from support.waiting import until

PROBE = str(Path(sys.executable).with_name("probe"))


@dataclass
class Served:
    """A running host server, and its output."""

    process: subprocess.Popen[str]
    unix: str
    tcp: str
    said: str
    tokens: Path

    def token(self, role: str) -> dict[str, str]:
        """Return the header with the token."""
        file = self.tokens / ("token" if role == "control" else "token.read")
        return {"Authorization": f"Bearer {file.read_text().strip()}"}

    def ask(self, method: str, path: str, role: str = "", **more: object) -> httpx.Response:
        """Return an answer over TCP, with the token of `role`, if any."""
        headers = {**(self.token(role) if role else {}), **more.pop("headers", {})}  # type: ignore[dict-item]
        url = f"http://{self.tcp}{path}"
        return httpx.request(method, url, headers=headers, trust_env=False, timeout=30, **more)  # type: ignore[arg-type]

    @contextmanager
    def stream(self, method: str, path: str, role: str, **more: object) -> Iterator[Iterator[str]]:
        """Yield the lines of an answer as they come; disconnect when the block is left."""
        url, headers = f"http://{self.tcp}{path}", self.token(role)
        with (
            httpx.Client(trust_env=False, timeout=30) as http,
            http.stream(method, url, headers=headers, **more) as answer,  # type: ignore[arg-type]
        ):
            yield answer.iter_lines()


@contextmanager
def training(code: str = "import sys; sys.stdin.read()", **environ: str) -> Iterator[int]:
    """The PID of a target that was started with the recorder."""
    with subprocess.Popen(
        [PROBE, "run", sys.executable, "-c", code], stdin=subprocess.PIPE, env=environment(**environ)
    ) as process:
        try:
            until(lambda: list(Path("/dev/shm").glob(f"probe-{os.getuid()}/{process.pid}-*/target.json")))
            yield process.pid
        finally:
            process.kill()


@contextmanager
def serving(folder: Path, *options: str, first: str = "", **environ: str) -> Iterator[Served]:
    """Run `probe serve` with its socket in `folder`, ready; `first` is code that it runs before anything else."""
    path, tcp = str(folder / "host.sock"), free_address()
    options = tuple(tcp if option == "TCP" else option for option in options)
    environ = {"XDG_CONFIG_HOME": str(folder), **environ}
    command = ["-c", f"{first}\nfrom probe_cli.main import main\nmain()", "serve", "--unix", path, *options]
    how: dict[str, Any] = {"stderr": subprocess.PIPE, "text": True, "env": environment(**environ)}
    start = partial(subprocess.Popen, [sys.executable, *command]) if first else partial(Forked, command, server=SERVERS)
    with start(**how) as process:
        try:
            assert process.stderr is not None
            said = ""
            for line in process.stderr:
                said += line
                if f"unix:{path}" in line:
                    break
            assert process.poll() is None, said
            yield Served(process, path, tcp, said, folder / "probe")
        finally:
            process.terminate()
