"""A target that forks, execs or is killed: its children are clean, and its rings outlive it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from inject.conftest import detach
from support.waiting import until

from probe_agent import inject

from .conftest import training, wait_until_ready

FORKS = """
import gc, json, os, sys, time

def look():
    links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if name.isdigit() and os.path.exists(f"/proc/self/fd/{name}")]
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": [link for link in links if "probe" in link or "statm" in link],
        "modules": [name for name in sys.modules if "probe" in name],
        "caught": [int(line.split()[1], 16) & ~(3 << 31) for line in open("/proc/self/status") if line.startswith(("SigCgt", "SigBlk"))],
        "interval": sys.getswitchinterval(),
        "watchers": len(getattr(sys, "_probe_fork_watchers", ())),
    }

before = look()
print("ready", flush=True)
for line in sys.stdin:
    if line == "exec\\n":
        os.execv(sys.executable, [sys.executable, "-c", "import sys; print('another', flush=True); sys.stdin.read()"])
    child = os.fork()
    if not child:
        print(json.dumps([before, look()]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""  # noqa: E501


@contextmanager
def forking() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert say(process, None) == "ready\n"
            yield process
        finally:
            process.kill()


def say(process: subprocess.Popen[str], word: str | None) -> str:
    """Return its next output after `word`."""
    assert process.stdin is not None
    assert process.stdout is not None
    if word:
        process.stdin.write(word + "\n")
        process.stdin.flush()
    return process.stdout.readline()


def states(probe: Any, pid: int, *endpoint: str) -> list[str]:
    """Return what `probe list` says about a process."""
    code, out, _ = probe(*endpoint, "list", "--dead", "--format", "json")
    assert code == 0
    return [row["state"] for row in json.loads(out) if row["pid"] == pid]


def num_steps(probe: Any, endpoint: object) -> int:
    code, rows, said = probe(endpoint, "query", "SELECT COUNT(*) AS n FROM python.steps", "--format", "json")
    assert code == 0, said
    return int(json.loads(rows)[0]["n"])


@pytest.mark.situation("the target forks while attached", "the child contains nothing of the agent")
def test_a_forked_child_is_clean() -> None:
    with forking() as process:
        attached = inject.attach(process.pid)
        children = [json.loads(say(process, "fork")) for _ in range(3)]
        detach(attached)
        later = json.loads(say(process, "fork"))

    for before, child in [*children, later]:
        for name in ("threads", "descriptors", "caught", "interval", "watchers"):
            assert child[name] == before[name], name
    assert later[1]["modules"] == []


@pytest.mark.situation("the target becomes another program by exec", "`probe list` does not show it as a living target")
def test_an_exec_ends_the_target(probe: Any) -> None:
    with forking() as process:
        attached = inject.attach(process.pid)
        by_folder = states(probe, process.pid, str(attached.folder))
        assert say(process, "exec") == "another\n"
        seen = states(probe, process.pid)
        process.kill()
        process.wait()
        after = states(probe, process.pid)
        code, _, said = probe(process.pid, "clean")

    assert by_folder == ["sleeping"]
    assert seen == ["gone", "no agent"]
    assert after == ["gone"]
    assert code == 0, said


@pytest.mark.torch
@pytest.mark.situation("the target is killed", "its rings can be queried until `probe clean`, or for a week")
def test_the_rings_of_the_dead_stay_until_they_are_cleaned(tmp_path: Path, probe: Any) -> None:
    with training("aot_eager", tmp_path) as target:
        wait_until_ready(target)
        attached = inject.attach(target.pid)
        until(lambda: num_steps(probe, target.pid) > 0)
        alive = probe(target.pid, "clean")
        target.process.kill()
        target.process.wait()
    state = states(probe, target.pid)
    recorded = num_steps(probe, target.pid)
    too_young = probe(target.pid, "clean", "--older-than", "1h")
    copy = tmp_path / "copy"
    shutil.copytree(attached.folder, copy, ignore=lambda folder, names: ["control.sock"])
    in_place = num_steps(probe, attached.folder)
    not_by_path = probe(copy, "clean")
    cleaned = probe(target.pid, "clean")
    from_copy = num_steps(probe, copy), states(probe, target.pid, str(copy)), probe(copy, "tables")[0]
    no_stacks = probe(copy, "backtrace")

    assert alive[0] != 0
    assert "detach" in alive[2]
    assert state == ["gone"]
    assert recorded > 0
    assert in_place == recorded
    assert from_copy == (recorded, ["gone"], 0)
    assert no_stacks[0] == 4
    assert not_by_path[0] == 2
    assert "not old enough" in too_young[2]
    assert f"removed what pid {target.pid} left" in cleaned[2]
    assert not attached.folder.exists()
    assert states(probe, target.pid) == []
