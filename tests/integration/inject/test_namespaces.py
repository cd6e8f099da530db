"""Targets with other mounts, processes or networks: attach and every command work from outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import commands

from probe_agent import inject

from .conftest import detach
from .programs import child_of, program, unshare

PROBE = str(Path(sys.executable).parent / "probe")
CODE = "import time\ndef work():\n    while True: time.sleep(0.01)\nanswer = 42\nprint('ready', flush=True)\nwork()"
OWN_SHM = ("sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh")


def probe(*args: str) -> str:
    """Return the output of `probe`."""
    done = commands.probe(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.situation("in a container: its own mounts, processes, network", "works from outside, as do all commands")
def test_a_container_is_reached_from_outside() -> None:
    before = (
        *unshare("--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"),
        *OWN_SHM,
    )
    with program(CODE, before=before) as outer:
        pid = child_of(outer)
        probe(str(pid), "inject")
        listed = json.loads(probe("list", "--format", "json"))
        asked = probe(str(pid), "query", "SELECT func FROM python.backtrace WHERE depth < 3", "--format", "csv")
        told = probe(str(pid), "eval", "answer + 1")
        where = probe(str(pid), "backtrace")
        probe(str(pid), "detach")

        assert not [path for path in Path(f"/proc/{pid}/root/dev/shm").glob("probe-*/*")]
    assert pid in [row["pid"] for row in listed]
    assert "work" in asked
    assert told.strip() == "43"
    assert "work" in where


@pytest.mark.situation("in a chroot", "works from outside, as do all commands")
def test_a_chroot_is_reached_from_outside(tmp_path: Path) -> None:
    if shutil.which("chroot") is None:
        pytest.skip("no chroot here")
    root = tmp_path / "root"
    root.mkdir()
    script = f'mount --rbind / {root} && mount -t tmpfs none {root}/dev/shm && exec chroot {root} "$@"'
    with program(CODE, before=(*unshare("--mount"), "sh", "-c", script, "sh")) as process:
        assert os.readlink(f"/proc/{process.pid}/root") == str(root)

        probe(str(process.pid), "inject")
        told = probe(str(process.pid), "eval", "answer + 1")
        probe(str(process.pid), "detach")

        assert not [path for path in Path(f"/proc/{process.pid}/root/dev/shm").glob("probe-*/*")]
    assert told.strip() == "43"


@contextmanager
def network() -> Iterator[str]:
    """A network namespace made by `ip netns`, removed in the end."""
    name = f"probe-test-{os.getpid()}"
    made = shutil.which("ip") and subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if not made:
        pytest.skip("this machine lets us make no network namespaces")
    try:
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.mark.situation("in a network namespace of ip netns", "works from outside")
def test_another_network() -> None:
    with network() as name, program(CODE, before=("ip", "netns", "exec", name)) as process:
        saw = next(check.saw for check in inject.examine(process.pid) if check.name == "namespaces")

        detach(inject.attach(process.pid))

    assert "net" in saw


OTHERS = {
    "processes": ("--pid", "--fork", "--kill-child"),
    "mounts": ("--mount",),
    "users": ("--user", "--map-root-user"),
    "users, mounts and processes": ("--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"),
}


@pytest.mark.situation("in a user, PID or mount namespace alone", "works from outside")
@pytest.mark.parametrize("name", OTHERS)
def test_a_single_namespace(name: str) -> None:
    with program(CODE, before=unshare(*OTHERS[name])) as outer:
        pid = child_of(outer) if "--fork" in OTHERS[name] else outer.pid

        attached = inject.attach(pid)
        detach(attached)

    assert attached.hello["host_pid"] == pid


@pytest.mark.situation("outside of the container that the command runs in", "not visible there; refused")
def test_a_target_outside_our_own_container() -> None:
    before = (*unshare("--pid", "--fork", "--kill-child", "--mount-proc"),)
    with program(CODE) as process:
        inside = [*before, PROBE, str(process.pid), "inject"]
        done = subprocess.run(inside, capture_output=True, text=True, timeout=60)

    assert done.returncode != 0
    assert f"pid {process.pid}" in done.stderr
    assert "no such process" in done.stderr
