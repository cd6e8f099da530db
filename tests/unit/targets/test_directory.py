"""Targets are found by their folders, and trusted only if these are safe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from probe_agent.errors import BadRequest, NoAnswer
from probe_agent.procfs import read_process
from probe_agent.recorder.ring.folder import folder_name, hold
from probe_agent.targets import TargetDirectory


def make(base: Path, pid: int, ticks: int, **said: object) -> Path:
    folder = base / f"probe-{os.getuid()}" / folder_name(pid, ticks)
    folder.mkdir(0o700, parents=True)
    folder.parent.chmod(0o700)
    identity = {"pid": pid, "host_pid": pid, "start_ticks": ticks, "rank": 0, "world_size": 1, **said}
    (folder / "target.json").write_text(json.dumps(identity))
    return folder


def own_ticks() -> int:
    process = read_process(os.getpid())
    assert process is not None
    return process.start_ticks


def test_a_living_target_is_preferred_to_a_dead_one_of_the_same_rank(tmp_path: Path) -> None:
    make(tmp_path, 2**22 + 1, 5)
    lock = hold(str(make(tmp_path, os.getpid(), own_ticks())))

    chosen = TargetDirectory((str(tmp_path),)).find(rank=0)

    os.close(lock)
    assert (chosen.pid, chosen.is_alive) == (os.getpid(), True)


def test_a_number_that_lives_again_is_not_taken_for_the_target(tmp_path: Path) -> None:
    make(tmp_path, os.getpid(), own_ticks() - 1)

    (target,) = TargetDirectory((str(tmp_path),)).targets()

    assert (target.is_alive, target.state) == (False, "gone")


def test_a_held_folder_says_that_its_unseen_owner_lives(tmp_path: Path) -> None:
    lock = hold(str(make(tmp_path, 2**22 + 1, 5)))

    (held,) = TargetDirectory((str(tmp_path),)).targets()
    os.close(lock)
    (free,) = TargetDirectory((str(tmp_path),)).targets()

    assert (held.is_alive, held.state) == (True, "in another PID namespace")
    assert not free.is_alive


def test_an_ended_target_is_read_once_until_its_folder_changes(tmp_path: Path) -> None:
    folder = make(tmp_path, 2**22 + 1, 5)
    directory = TargetDirectory((str(tmp_path),))
    (new,) = directory.targets()
    os.utime(folder, (1e9, 1e9))  # long ago

    (first,), (second,) = directory.targets(), directory.targets()
    (folder / "gone.json").write_text("{}")
    os.utime(folder, (1e9, 1e9 + 1))
    (changed,) = directory.targets()

    assert new is not first  # it may have ended just now, and more may be written
    assert first is second
    assert changed is not second


def test_a_living_target_is_read_each_time(tmp_path: Path) -> None:
    folder = make(tmp_path, os.getpid(), own_ticks())
    lock = hold(str(folder))
    os.utime(folder, (1e9, 1e9))
    directory = TargetDirectory((str(tmp_path),))

    (before,) = directory.targets()
    (after,) = directory.targets()
    os.close(lock)
    (exec_since,) = directory.targets()

    assert before is not after
    assert (before.is_alive, after.is_alive, exec_since.is_alive) == (True, True, False)


def test_a_folder_that_others_could_have_prepared_is_left_alone(tmp_path: Path) -> None:
    make(tmp_path, os.getpid(), own_ticks())
    (tmp_path / f"probe-{os.getuid()}").chmod(0o777)

    targets = TargetDirectory((str(tmp_path),)).targets()

    assert targets == []


@pytest.mark.parametrize("said", ["", "{", "[]", '{"pid": 1}', '{"pid": "1", "host_pid": 1}'])
def test_a_folder_with_no_proper_identity_is_no_target(tmp_path: Path, said: str) -> None:
    (make(tmp_path, os.getpid(), own_ticks()) / "target.json").write_text(said)

    targets = TargetDirectory((str(tmp_path),)).targets()

    assert targets == []


def test_an_ambiguous_target_is_refused(tmp_path: Path) -> None:
    directory = TargetDirectory((str(tmp_path),))
    folders = [make(tmp_path, 2**22 + 1 + rank, 5, rank=rank, world_size=2) for rank in range(2)]

    assert directory.find(rank=1).pid == 2**22 + 2
    with pytest.raises(NoAnswer, match="no living target, and 2 ended"):
        directory.find()
    locks = [hold(str(folder)) for folder in folders]
    with pytest.raises(BadRequest, match="2 targets fit"):
        directory.find()
    for lock in locks:
        os.close(lock)
    with pytest.raises(NoAnswer, match="no target of this host has rank 7"):
        directory.find(rank=7)
    with pytest.raises(NoAnswer, match="no such process"):
        directory.find(pid=2**22 + 3)


def test_ourselves_are_no_candidate(tmp_path: Path) -> None:
    candidates = TargetDirectory((str(tmp_path),)).candidates()

    assert os.getpid() not in [process.pid for process in candidates]


def test_what_a_target_starts_by_another_program_is_a_candidate_and_its_own_workers_are_not(tmp_path: Path) -> None:
    say_pid = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    commands = [[sys.executable, "-S", "-c", say_pid], ["sh", "-c", f'"{sys.executable}" -S -c "{say_pid}"; true']]
    lock = hold(str(make(tmp_path, os.getpid(), own_ticks())))
    with ExitStack() as running:
        started = [
            running.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for command in commands
        ]
        worker, by_another = (int(process.stdout.readline()) for process in started if process.stdout is not None)

        candidates = [process.pid for process in TargetDirectory((str(tmp_path),)).candidates()]

    os.close(lock)
    assert by_another in candidates
    assert worker not in candidates


def test_the_dead_beside_the_living_are_named_when_they_are_left_out(tmp_path: Path) -> None:
    make(tmp_path, 2**22 + 1, 5, rank=1, world_size=2)
    directory = TargetDirectory((str(tmp_path),))
    alone = directory.left_out(directory.seen())
    lock = hold(str(make(tmp_path, os.getpid(), own_ticks())))
    directory = TargetDirectory((str(tmp_path),))

    seen = directory.seen()
    said = [directory.left_out(seen), directory.left_out(seen, rank=0), directory.left_out(seen, pid=os.getpid())]

    os.close(lock)
    assert alone == ""
    assert said == [f"without pid {2**22 + 1} (rank 1): ended; a PID asks for what it left", "", ""]
