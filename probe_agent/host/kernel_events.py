"""Events in the kernel's log that end or slow jobs: GPU errors (Xid), OOM kills, memory errors, links, hung tasks.

Whoever asks gets the lines that are such events, and no others. One pass over the lines, some µs each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .kernel_log import Line

__all__ = ["Event", "events"]

#: Meanings of the numbers of NVIDIA's driver that a training job meets.
XIDS = {
    8: "GPU stopped processing: it took too long",
    13: "graphics engine exception: usually an illegal access or instruction of the job's own kernels",
    31: "GPU memory page fault: usually an illegal address in the job's own kernels",
    32: "invalid or corrupted push buffer: driver or PCIe",
    43: "GPU stopped processing: the job's own kernel failed, the GPU is healthy",
    45: "preemptive cleanup, after another error or when the job was killed",
    48: "uncorrectable ECC error in GPU memory: the GPU must be reset",
    61: "internal microcontroller breakpoint: reset the GPU",
    62: "internal microcontroller halt: reset the GPU",
    63: "a row of GPU memory was remapped, or a page retired: takes effect at the next reset",
    64: "remapping a row of GPU memory failed: replace the GPU",
    68: "exception of the video decoder",
    69: "graphics engine class error",
    74: "NVLink error: cable, switch or GPU",
    79: "GPU has fallen off the bus: power, PCIe or hardware; the host must be restarted",
    92: "ECC errors, corrected, at a high rate",
    94: "contained ECC error: the job that had the memory ends, the others go on",
    95: "uncontained ECC error: every job on the GPU ends, the GPU must be reset",
    109: "context switch timeout",
    119: "the GPU's system processor (GSP) does not answer: reset the GPU",
    120: "error of the GPU's system processor (GSP): reset the GPU",
    121: "error on the link between CPU and GPU (C2C), corrected",
    140: "unrecovered ECC error",
    143: "GPU failed to start",
    149: "NVLink error: cable, switch or GPU",
    154: "what is needed to recover the GPU has changed",
}


@dataclass(frozen=True)
class Event:
    """One event."""

    at: float
    kind: str
    text: str
    code: int | None = None
    meaning: str | None = None
    #: The process, as the kernel's first PID namespace numbers it, and its name.
    process: int | None = None
    command: str | None = None
    cgroup: str | None = None
    #: PCI address, network device or disk.
    device: str | None = None


def events(lines: Iterable[Line]) -> Iterator[Event]:
    """Yield the lines that are events, in their order. What an OOM kill says in two lines is one event."""
    details: dict[int, str] = {}  # control groups of the processes that the OOM killer chose, by PID
    for line in lines:
        chosen = _OOM_CHOICE.search(line.text)
        if chosen is not None:
            details[int(chosen["pid"])] = chosen["cgroup"]
            continue
        for pattern, event_of in _KINDS:
            found = pattern.search(line.text)
            if found is not None:
                event = event_of(line, found)
                group = details.pop(event.process, None) if event.kind == "oom_kill" and event.process else None
                yield event if group is None else _with_group(event, group)
                break


def _with_group(event: Event, group: str) -> Event:
    return Event(event.at, event.kind, event.text, None, event.meaning, event.process, event.command, group)


_OOM_CHOICE = re.compile(r"oom-kill:.*?task_memcg=(?P<cgroup>[^,]+).*?,pid=(?P<pid>\d+)")


def _xid(line: Line, found: re.Match[str]) -> Event:
    code = int(found["code"])
    process, command = (found[name] for name in ("pid", "name"))
    return Event(
        line.at,
        "xid",
        line.text,
        code,
        XIDS.get(code, "see NVIDIA's list of Xid errors"),
        int(process) if process and process.isdigit() else None,
        None if command in (None, "<unknown>") else command,
        device=found["device"],
    )


def _off_bus(line: Line, found: re.Match[str]) -> Event:
    return Event(line.at, "xid", line.text, 79, XIDS[79], device=found["device"])


def _oom(line: Line, found: re.Match[str]) -> Event:
    whose = "a control group's memory is full" if "cgroup" in found["whose"] else "the host's memory is full"
    return Event(
        line.at,
        "oom_kill",
        line.text,
        meaning=f"{whose}, and the kernel has killed this process",
        process=int(found["pid"]),
        command=found["name"],
    )


def _hung(line: Line, found: re.Match[str]) -> Event:
    return Event(
        line.at,
        "hung_task",
        line.text,
        meaning=f"it has waited in the kernel for {found['seconds']} s: storage, network file system or driver",
        process=int(found["pid"]),
        command=found["name"],
    )


def _of(kind: str, meaning: str) -> Callable[[Line, re.Match[str]], Event]:
    def event_of(line: Line, found: re.Match[str]) -> Event:
        return Event(line.at, kind, line.text, meaning=meaning, device=found.groupdict().get("device"))

    return event_of


#: In the order in which they are tried; the first one that fits names the event.
_KINDS: tuple[tuple[re.Pattern[str], Callable[[Line, re.Match[str]], Event]], ...] = (
    (
        re.compile(
            r"NVRM: Xid \((?:PCI:)?(?P<device>[0-9a-fA-F:.]+)[^)]*\): (?P<code>\d+)"
            r"(?:, pid='?(?P<pid>\d+|<unknown>)'?)?(?:, name='?(?P<name>[^,']+)'?)?"
        ),
        _xid,
    ),
    (
        re.compile(r"NVRM: (?:The NVIDIA )?GPU (?:at PCI:)?(?P<device>[0-9a-f:.]*[0-9a-f]).*fallen off the bus"),
        _off_bus,
    ),
    (
        re.compile(
            r"^(?P<whose>Memory cgroup out|Out) of memory:? Kill(?:ed)? process (?P<pid>\d+),? \((?P<name>[^)]*)\)",
            re.I,
        ),
        _oom,
    ),
    (re.compile(r"task (?P<name>.+):(?P<pid>\d+) blocked (?:.* )?for more than (?P<seconds>\d+) seconds"), _hung),
    (
        re.compile(r"(?:soft lockup|rcu: INFO: rcu_\w+ (?:self-)?detected stall|NMI watchdog: .*lockup)"),
        _of("lockup", "a processor has not come back from the kernel for seconds"),
    ),
    (
        re.compile(
            r"\[Hardware Error\]: .*(?:Uncorrect|Fatal|fatal)|mce: .*Machine Check|Uncorrected hardware memory error"
        ),
        _of("memory_error", "uncorrected error of the host's memory or processor"),
    ),
    (
        re.compile(r"EDAC .*: \d+ (?P<kind>[CU]E) |\[Hardware Error\]: .*[Cc]orrected|Memory failure: 0x"),
        _of("memory_error", "error of the host's memory, corrected or put out of use"),
    ),
    (re.compile(r"AER: .*(?:Uncorrect|Fatal)\S* .*error"), _of("pcie_error", "uncorrected error on PCI Express")),
    (
        re.compile(r"(?P<device>[\w.-]+):? (?:NIC )?[Ll]ink (?:is )?(?:[Dd]own|DOWN)\b"),
        _of("link_down", "a network link went down"),
    ),
    (
        re.compile(
            r"(?P<device>mlx5_core [0-9a-f:.]*[0-9a-f]).*(?:[Ll]ink [Dd]own|health compromised|device's health)"
        ),
        _of("link_down", "a network adapter or its link went down"),
    ),
    (
        re.compile(r"(?:blk_update_request: |)I/O error, dev (?P<device>\w+)|(?P<nvme>nvme\d+): I/O .*timeout"),
        _of("io_error", "a disk has failed to read or write"),
    ),
    (re.compile(r"nfs: server (?P<device>\S+) not responding"), _of("nfs", "a network file system does not answer")),
    (
        re.compile(r"(?:LustreError|Lustre): .*(?:was lost|not responding|evicted|timed out)"),
        _of("nfs", "a network file system does not answer"),
    ),
    (
        re.compile(r"CPU\d+: (?:Core|Package) temperature above threshold"),
        _of("thermal", "a processor is throttled by heat"),
    ),
    (
        re.compile(r"(?P<name>\S+)\[(?P<pid>\d+)\]: segfault at"),
        lambda line, found: Event(
            line.at,
            "segfault",
            line.text,
            meaning="it ended by a bad memory access",
            process=int(found["pid"]),
            command=found["name"],
        ),
    ),
)
