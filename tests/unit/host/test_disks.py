"""Disks and mounts: texts of several kernels, and the files of this very process."""

from __future__ import annotations

import os
from pathlib import Path

from probe_agent.host.disks import COUNTERS, disks, mounts, parsed_disks, quota, uses
from probe_agent.procfs import Process

#: Linux 6.18: 20 columns; 4.19: 18; 3.10: 14.
NEW = (
    "254       0 vda 413329 49824 14413338 2642308 77294 193531 11366864 163727 0 146124 2926164"
    " 59690 885 3285328 119830 3938 297\n"
)
MIDDLE = "   8       0 sda 100 0 2048 500 10 0 4096 1000 0 1200 1500 0 0 0 0\n"
OLD = "   8      16 sdb 100 0 2048 500 10 0 4096 1000 0 1200 1500\n   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0\n"
MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24684084k
60 27 0:48 / /ckpt\\040of\\040job rw,noatime shared:3 master:1 - nfs4 filer:/export rw,vers=4.2
61 27 0:49 / /ro ro - lustre mgs@o2ib:/work rw
62 27 8:16 / /data rw - xfs /dev/sdb rw
63 27 0:60 / /data rw - overlay overlay rw
"""


def test_disks_of_three_kernels() -> None:
    found = dict(parsed_disks(NEW + MIDDLE + OLD))

    assert list(found) == ["254:0", "8:0", "8:16"]
    assert found["8:0"] == found["8:16"]
    told = dict(zip(COUNTERS, found["8:0"].counters, strict=True))
    assert told == {"reads": 100, "read": 1, "read_time": 0.5, "writes": 10, "written": 2, "write_time": 1, "busy": 1.2}


def test_mounts_with_spaces_options_and_one_above_another() -> None:
    found = mounts(MOUNTS)

    assert [(mount.path, mount.kind, mount.is_read_only) for mount in found[3:]] == [
        ("/ckpt of job", "nfs4", False),
        ("/ro", "lustre", True),
        ("/data", "xfs", False),
        ("/data", "overlay", False),
    ]


def test_a_process_uses_its_working_directory_and_what_it_writes(tmp_path: Path) -> None:
    own = Process(os.getpid())
    before = {use.mount.path: use.num_open for use in uses(own)}
    with (tmp_path / "new").open("w"), (tmp_path / "new").open():
        found = {use.mount.path: use for use in uses(own)}
        without = {use.mount.path: use.num_open for use in uses(own, but=tmp_path.name)}

    place = next(use for use in found.values() if use.num_open > before.get(use.mount.path, 0))
    assert place.num_open == before.get(place.mount.path, 0) + 1
    assert without.get(place.mount.path, 0) == place.num_open - 1
    assert str(tmp_path).startswith(place.mount.path)
    assert sum(use.is_cwd for use in found.values()) == 1


def test_there_is_no_quota_on_what_is_no_device() -> None:
    assert quota("tmpfs", os.getuid(), os.getgid()) is None
    assert quota("/dev/null", os.getuid(), os.getgid()) is None


def test_this_host_has_disks_in_a_form_that_is_known() -> None:
    assert all(len(sample.counters) == len(COUNTERS) for sample in disks().values())
