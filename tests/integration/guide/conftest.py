"""A job for the guide's commands: both scripts, by PID and through a host server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from support.commands import environment
from support.forked import Forked
from support.ports import free_address

TARGETS = Path(__file__).parents[2] / "targets"
BIN = Path(sys.executable).parent

Shell = Callable[..., "subprocess.CompletedProcess[str]"]


@contextmanager
def training(script: str, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """One of the guide's scripts, past its fifth step; killed at the end if it has not ended, told if it has failed."""
    with (
        TemporaryFile("w+") as stderr,
        Forked(
            [TARGETS / script, *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=folder,
            env=environment(),
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            code = process.poll()
            process.kill()
            stderr.seek(0)
            print(f"{script} {'was running' if code is None else f'had ended with {code}'}: {stderr.read()}")
        assert code in (None, 0)


@contextmanager
def host_server(folder: Path) -> Iterator[str]:
    """`probe serve` on a free port; yields its endpoint."""
    endpoint = free_address()
    command = ["probe", "serve", "--listen", endpoint, "--unix", str(folder / "host.sock")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as server:
        try:
            assert server.stderr is not None
            for line in server.stderr:
                if endpoint in line:
                    break
            yield endpoint
        finally:
            server.terminate()


@pytest.fixture(
    scope="module",
    params=[
        ("guide_globals.py", "pid"),
        ("guide_locals.py", "host:port"),
        pytest.param(("guide_locals.py", "pid"), marks=pytest.mark.long),
        pytest.param(("guide_globals.py", "host:port"), marks=pytest.mark.long),
    ],
    ids=lambda param: "-".join(param),
)
def endpoint(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The guide's $ENDPOINT."""
    script, kind = request.param
    with training(script, folder, "--pause", "0.01") as process:
        if kind == "pid":
            yield str(process.pid)
            return
        command = ["probe", str(process.pid), "inject"]
        subprocess.run(command, env=environment(), check=True, capture_output=True)
        with host_server(folder) as address:
            yield f"{address}/pid={process.pid}"  # tests beside this one have targets on this host, too


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of the job."""
    return tmp_path_factory.mktemp("training")


@pytest.fixture
def shell(endpoint: str) -> Shell:
    """Run a line of the guide as written, with $ENDPOINT set; it must succeed."""

    def run(line: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["bash", "-c", line],
            env=environment(ENDPOINT=endpoint),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done

    return run
