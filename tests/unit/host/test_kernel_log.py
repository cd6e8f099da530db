"""Events of the kernel's log, in the words of several kernels and drivers, and the log of this host."""

from __future__ import annotations

import json

import pytest

from probe_agent.host.kernel_events import XIDS, events
from probe_agent.host.kernel_log import Line, LogUnreadable, from_journal, from_kmsg, from_syslog, read_log

#: Recorded on Linux 6.18.
OOM = [
    "4,352,782577222,-;python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n",
    "6,430,782580261,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg=/probe-test-3013,task_memcg=/probe-test-3013,task=python,pid=6769,uid=0\n SUBSYSTEM=x\n",
    "3,431,782580299,-;Memory cgroup out of memory: Killed process 6769 (python) total-vm:159300kB,"
    " anon-rss:76368kB, file-rss:6960kB, shmem-rss:0kB, UID:0 pgtables:216kB oom_score_adj:0\n",
]
#: text -> kind, code, process, command, device
LINES = {
    "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.": (
        "xid", 79, None, None, "0000:3b:00",
    ),
    "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus.": ("xid", 79, None, None, "0000:44:00"),
    "NVRM: Xid (PCI:0000:07:00): 31, pid=4121, name=python, Ch 00000008, intr 10000000. MMU Fault": (
        "xid", 31, 4121, "python", "0000:07:00",
    ),
    "NVRM: Xid (PCI:0000:07:00): 13, pid=4121, Graphics SM Warp Exception": ("xid", 13, 4121, None, "0000:07:00"),
    "NVRM: Xid (PCI:0000:9b:00 GPU-I:05): 94, pid='77', name=python3.11, Ch 00000012": (
        "xid", 94, 77, "python3.11", "0000:9b:00",
    ),
    "NVRM: Xid (0000:01:00): 999, something new": ("xid", 999, None, None, "0000:01:00"),
    "NVRM: GPU at PCI:0000:44:00: GPU-1ac4: GPU has fallen off the bus.": ("xid", 79, None, None, "0000:44:00"),
    "Out of memory: Killed process 99 (python3) total-vm:1kB, anon-rss:1kB": ("oom_kill", None, 99, "python3", None),
    "Out of memory: Kill process 99 (python) score 871 or sacrifice child": ("oom_kill", None, 99, "python", None),
    "INFO: task python:4242 blocked for more than 120 seconds.": ("hung_task", None, 4242, "python", None),
    "INFO: task kworker/u8:2:77 blocked for more than 241 seconds.": ("hung_task", None, 77, "kworker/u8:2", None),
    "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:99]": ("lockup", None, None, None, None),
    "mlx5_core 0000:ab:00.0 ibp171s0: Link down": ("link_down", None, None, None, "ibp171s0"),
    "mlx5_core 0000:ab:00.0: Port module event: module 0, Link down": (
        "link_down", None, None, None, "mlx5_core 0000:ab:00.0",
    ),
    "igb 0000:01:00.0 eno1: igb: eno1 NIC Link is Down": ("link_down", None, None, None, "eno1"),
    "bond0: link status definitely down for interface ens1f0": None,
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0": ("memory_error", None, None, None, None),
    "mce: [Hardware Error]: Machine check events logged": None,
    "{1}[Hardware Error]: event severity: Fatal": ("memory_error", None, None, None, None),
    "I/O error, dev nvme0n1, sector 123 op 0x1:(WRITE)": ("io_error", None, None, None, "nvme0n1"),
    "blk_update_request: I/O error, dev sda, sector 5": ("io_error", None, None, None, "sda"),
    "nfs: server filer1 not responding, still trying": ("nfs", None, None, None, "filer1"),
    "python[6480]: segfault at 0 ip 00007fad30985ad8 sp 00007fff73d53988 error 4 in libc.so.6": (
        "segfault", None, 6480, "python", None,
    ),
    "audit: type=1326 audit(1795412199.057:2): auid=4294967295": None,
    "nvidia-uvm: Loaded the UVM driver, major device number 511.": None,
    "eth0: Link is Up - 1Gbps/Full": None,
}  # fmt: skip


@pytest.mark.parametrize("text", LINES)
def test_a_line_is_the_event_that_it_is(text: str) -> None:
    found = list(events([Line(5.0, text)]))

    told = [(one.kind, one.code, one.process, one.command, one.device) for one in found]
    assert told == ([] if LINES[text] is None else [LINES[text]])
    assert all(one.meaning and one.at == 5.0 and one.text == text for one in found)


def test_an_oom_kill_has_its_process_group_and_time() -> None:
    (event,) = events(from_kmsg(OOM, boot=1_000.0))

    assert (event.kind, event.process, event.command, event.cgroup) == ("oom_kill", 6769, "python", "/probe-test-3013")
    assert event.at == pytest.approx(1782.580299)
    assert "control group" in str(event.meaning)


def test_lines_of_syslog_with_and_without_the_caller() -> None:
    text = (
        "<6>[    0.000000] Linux version 5.15\n<3>[  123.456789][T1234] NVRM: Xid (PCI:0000:01:00): 48\n[ 7.5] plain\n"
    )

    assert list(from_syslog(text, 1_000.0)) == [
        Line(1000.0, "Linux version 5.15"),
        Line(1123.456789, "NVRM: Xid (PCI:0000:01:00): 48"),
        Line(1007.5, "plain"),
    ]


def test_lines_of_the_journal_have_their_own_time() -> None:
    entries = [
        {"MESSAGE": "NVRM: Xid (PCI:0000:01:00): 74", "__REALTIME_TIMESTAMP": "1795413690473800", "PRIORITY": "3"},
        {"MESSAGE": [110, 111], "__REALTIME_TIMESTAMP": "1"},  # bytes that are no text
    ]

    assert list(from_journal("\n".join(map(json.dumps, entries)))) == [
        Line(1795413690.4738, "NVRM: Xid (PCI:0000:01:00): 74")
    ]


def test_every_xid_has_a_meaning_in_words() -> None:
    assert all(len(meaning) > 15 for meaning in XIDS.values())


def test_the_log_of_this_host_is_read_or_the_refusals_are_told() -> None:
    try:
        lines, source = read_log()
    except LogUnreadable as refusal:
        assert "/dev/kmsg: " in str(refusal)  # noqa: PT017  # which of the two depends on the host
    else:
        assert source
        assert [line.at for line in lines] == sorted(line.at for line in lines)
