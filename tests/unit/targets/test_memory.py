"""Host memory of a process, and the control group whose limit comes first, in folders as the kernel shows them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from probe_agent.procfs import Process
from probe_agent.targets.memory import read_cgroup

MIB = 2**20


@dataclass(frozen=True)
class InGroup(Process):
    """This process, as if it were in other groups."""

    groups: str = ""

    def read(self, name: str) -> str:
        return self.groups if name == "cgroup" else super().read(name)


def version_2(folder: Path, current: int, limit: str, anon: int, file: int, shmem: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.current").write_text(f"{current * MIB}\n")
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.stat").write_text(f"anon {anon * MIB}\nfile {file * MIB}\nshmem {shmem * MIB}\n")


def version_1(folder: Path, used: int, limit: int, rss: int, cache: int, shmem: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.usage_in_bytes").write_text(f"{used * MIB}\n")
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    stat = f"rss 1\ntotal_rss {rss * MIB}\ntotal_cache {cache * MIB}\ntotal_shmem {shmem * MIB}\n"
    (folder / "memory.stat").write_text(stat)


def test_the_group_whose_limit_comes_first_is_shown(tmp_path: Path) -> None:
    version_2(tmp_path / "pods/one", 300, str(1000 * MIB), 100, 200, 50)
    version_2(tmp_path / "pods", 1900, str(2000 * MIB), 1800, 100, 50)

    found = read_cgroup(InGroup(os.getpid(), "0::/pods/one\n"), tmp_path)

    assert found is not None
    assert (found.path, found.used, found.limit, found.anonymous) == ("/pods", 1900, 2000, 1800)
    assert (found.page_cache, found.shmem) == (50, 50)
    assert found.headroom == 150, "its page cache can be given back, shared memory cannot"


def test_without_a_limit_the_own_group_is_shown(tmp_path: Path) -> None:
    version_2(tmp_path / "one", 300, "max", 100, 200, 50)

    found = read_cgroup(InGroup(os.getpid(), "1:cpu:/\n0::/one\n"), tmp_path)

    assert found is not None
    assert (found.path, found.limit, found.headroom) == ("/one", None, None)


def test_groups_of_version_1_are_read(tmp_path: Path) -> None:
    version_1(tmp_path / "memory/jobs/7", 300, 1000 * MIB, 100, 200, 50)
    version_1(tmp_path / "memory", 9000, 9223372036854771712, 100, 200, 50)

    found = read_cgroup(InGroup(os.getpid(), "4:cpu,memory:/jobs/7\n0::/\n"), tmp_path)

    assert found is not None
    assert (found.path, found.used, found.limit, found.page_cache) == ("/jobs/7", 300, 1000, 150)


@pytest.mark.parametrize("path", ["/kubepods/pod3", "/../../kubepods/pod3"])
def test_in_a_container_its_own_group_is_the_root(tmp_path: Path, path: str) -> None:
    version_2(tmp_path, 300, str(1000 * MIB), 100, 200, 0)

    found = read_cgroup(InGroup(os.getpid(), f"0::{path}\n"), tmp_path)

    assert found is not None
    assert (found.path, found.limit) == ("/", 1000)


def test_a_host_without_memory_groups_has_none(tmp_path: Path) -> None:
    assert read_cgroup(InGroup(os.getpid(), "0::/one\n"), tmp_path) is None
    assert read_cgroup(InGroup(os.getpid(), ""), tmp_path) is None
