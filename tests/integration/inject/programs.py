"""Small Python programs to attach to, in surroundings of every kind, and checks of a refusal."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic
from typing import Any

import pytest
from support.commands import plain

from probe_agent import inject
from probe_agent.errors import AttachRefused

FOREVER = "\nprint('ready', flush=True)\nwhile True: sum(range(100))"
#: Open to every user, which our own may not be.
SYSTEM_PYTHON = "/usr/bin/python3"
NOBODY = 65534


@contextmanager
def program(
    code: str, *, python: str = sys.executable, before: Sequence[str] = (), **how: Any
) -> Iterator[subprocess.Popen[str]]:
    """A Python program that has printed `ready`. Killed in the end; it must not have written to its stderr."""
    unset = plain()
    how = {"env": unset, "stdout": subprocess.PIPE, "text": True, **how}
    with (
        TemporaryFile("w+") as said,
        subprocess.Popen([*before, python, "-c", code], stderr=said, **how) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            said.seek(0)
            assert line == "ready\n", said.read()
            yield process
        finally:
            process.kill()
            process.wait()
        said.seek(0)
        text = said.read()
        assert text == "", f"the target's stderr is for the target, not for {text!r}"


def child_of(process: subprocess.Popen[str]) -> int:
    """Return the only child of a process: the program behind `unshare --fork`."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


@contextmanager
def refused(pid: int, cause: str, remedy: str) -> Iterator[None]:
    """Check that attaching to `pid` is refused with these words, and that `examine` says the same."""
    yield
    began = monotonic()
    with pytest.raises(AttachRefused) as caught:
        inject.attach(pid)
    took_s = monotonic() - began
    failed = [check for check in inject.examine(pid) if not check.ok]
    assert cause in caught.value.message
    assert remedy in caught.value.hint
    assert took_s < 5.0  # 2 s at most where the machine has nothing else to do
    assert cause in failed[0].saw
    assert remedy in failed[0].remedy


def unshare(*kinds: str) -> tuple[str, ...]:
    """Return a command prefix for separate namespaces; skip the test if they are forbidden."""
    command = ("unshare", *kinds)
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine lets us make no namespaces")
    return command


def with_mounts(script: str) -> tuple[str, ...]:
    """Return a command prefix that first changes the mounts of the program."""
    return (*unshare("--mount"), "sh", "-c", f'{script} && exec "$@"', "sh")


def needs_root() -> None:
    if os.getuid() != 0 or not os.access(SYSTEM_PYTHON, os.X_OK):
        pytest.skip("needs root, and a Python that other users can run")


def become_nobody() -> None:
    """Drop all privileges of this process."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
