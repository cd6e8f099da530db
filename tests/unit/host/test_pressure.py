"""Pressure and control groups: texts of several kernels, groups of version 1, 2 and both, and those of this host."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from pathlib import Path

import pytest

from probe_agent.host.pressure import COUNTERS, GAUGES, of_group, of_host, stalled_s

#: Linux 6.18; 5.4 has no line `full` for the CPU.
CPU = """\
some avg10=42.97 avg60=58.14 avg300=49.54 total=328809496
full avg10=0.00 avg60=0.00 avg300=0.00 total=0
"""
OLD_CPU = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n"
PRESSURE = (
    "some avg10=0.08 avg60=2.24 avg300=2.11 total=15000000\nfull avg10=0.00 avg60=0.16 avg300=0.24 total=4000000\n"
)


def files(folder: Path, **content: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (folder / name.replace("__", ".")).write_text(text)


def told(text: str, root: Path) -> tuple[str, Mapping[str, float]]:
    found = of_group(text, root)
    assert found is not None
    path, sample = found
    return path, {**dict(zip(COUNTERS, sample.counters, strict=True)), **dict(zip(GAUGES, sample.gauges, strict=True))}


def test_lines_of_pressure() -> None:
    assert stalled_s(CPU, "some") == 328.809496
    assert stalled_s(OLD_CPU, "some") == 1.5
    assert isnan(stalled_s(OLD_CPU, "full"))


def test_a_kernel_without_pressure_tells_nothing(tmp_path: Path) -> None:
    assert all(map(isnan, of_host(tmp_path).counters))


def test_a_group_of_version_2_with_a_limit_above_it(tmp_path: Path) -> None:
    pod, own = tmp_path / "kubepods" / "pod7", tmp_path / "kubepods" / "pod7" / "main"
    files(tmp_path, cgroup__procs="1\n")
    files(pod, cpu__max="200000 100000\n", memory__max="2147483648\n", pids__max="1000\n", pids__current="300\n",
          cpu__stat="usage_usec 9000000\nnr_periods 100\nnr_throttled 25\nthrottled_usec 3000000\n")  # fmt: skip
    files(own, cgroup__type="domain\n", cpu__pressure=CPU, memory__pressure=PRESSURE, io__pressure=PRESSURE,
          cpu__max="max 100000\n", cpu__stat="usage_usec 7000000\nuser_usec 1\nsystem_usec 2\n",
          memory__max="max\n", memory__current="1073741824\n", pids__max="max\n", pids__current="12\n",
          memory__events="low 0\nhigh 0\nmax 41\noom 2\noom_kill 1\n")  # fmt: skip

    path, found = told("0::/kubepods/pod7/main\n", tmp_path)

    assert path == "/kubepods/pod7/main"
    assert (found["cpu_limit"], found["cpu_used"], found["memory_limit"], found["memory_used"]) == (
        2.0,
        7.0,
        2048,
        1024,
    )
    assert (found["periods"], found["throttled_periods"], found["throttled_time"]) == (100, 25, 3.0)
    assert (found["limit_hits"], found["oom_kills"], found["pids_used"], found["pids_limit"]) == (41, 1, 300, 1000)
    assert (found["cpu_some"], found["io_full"]) == (328.809496, 4.0)


def test_a_group_of_version_1(tmp_path: Path) -> None:
    text = "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n"
    files(tmp_path / "cpu/docker/abc", cpu__cfs_quota_us="50000\n", cpu__cfs_period_us="100000\n",
          cpu__stat="nr_periods 10\nnr_throttled 4\nthrottled_time 2500000000\n")  # fmt: skip
    files(tmp_path / "cpuacct/docker/abc", cpuacct__usage="3000000000\n")
    files(tmp_path / "memory/docker/abc", memory__limit_in_bytes="1048576\n", memory__usage_in_bytes="524288\n",
          memory__failcnt="7\n", memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")  # fmt: skip

    path, found = told(text, tmp_path)

    assert path == "/docker/abc"
    assert (found["cpu_limit"], found["cpu_used"], found["throttled_periods"], found["throttled_time"]) == (
        0.5,
        3,
        4,
        2.5,
    )
    assert (found["memory_limit"], found["memory_used"], found["limit_hits"], found["oom_kills"]) == (1, 0.5, 7, 2)
    assert isnan(found["cpu_some"])


def test_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    files(tmp_path, cgroup__procs="1\n", cgroup__type="domain\n", cpu__pressure=OLD_CPU, cpu__max="100000 100000\n",
          memory__max="1048576\n", memory__current="524288\n")  # fmt: skip

    path, found = told("0::/../../system.slice/docker-1.scope\n", tmp_path)

    assert (path, found["cpu_limit"], found["cpu_some"]) == ("/", 1.0, 1.5)


def test_the_root_of_version_2_beside_version_1_is_not_the_group(tmp_path: Path) -> None:
    """Its pressure is that of the host."""
    files(tmp_path / "unified", cgroup__procs="1\n", cpu__pressure=CPU)
    files(tmp_path / "memory/job", memory__usage_in_bytes="1048576\n", memory__limit_in_bytes="9223372036854771712\n")

    path, found = told("4:memory:/job\n1:cpu:/\n0::/\n", tmp_path)

    assert path == "/job"
    assert isnan(found["cpu_some"])
    assert isnan(found["memory_limit"])


def test_no_control_group_can_be_read(tmp_path: Path) -> None:
    assert of_group("0::/gone\n", tmp_path / "nowhere") is None


def test_this_host_tells_its_pressure_or_that_it_has_none() -> None:
    has = Path("/proc/pressure/cpu").exists()

    assert isnan(of_host().counters[0]) != has


@pytest.mark.parametrize("text", [Path("/proc/self/cgroup").read_text()])
def test_this_process_has_a_group_or_none(text: str) -> None:
    found = of_group(text)

    assert found is None or found[0].startswith("/")
