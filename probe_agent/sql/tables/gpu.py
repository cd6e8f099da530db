"""`gpu.samples`: load, memory, power and errors of the host's GPUs, by target."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, suppress

import numpy as np

from probe_agent.gpu import NUMBERS, History, NvmlUnavailable, Reading, throttle_reasons, visible_devices
from probe_agent.recorder.ring.table import Column
from probe_agent.targets import Process, Target

from .host_history import coordinates
from .live_table import HostTable, Part

__all__ = ["GpuProcesses", "GpuSamples", "owners", "sample_host"]

_HISTORY = History()
#: A GPU in /dev; WSL has one device for all of them.
_DRIVER = re.compile(r"/dev/(nvidia\d+|dxg)$")


def sample_host() -> AbstractContextManager[None]:
    """Sample the GPUs once a second inside the block."""
    return _HISTORY.sampling()


class GpuSamples(HostTable):
    name = "gpu.samples"
    doc = (
        "State of each GPU of the host, through NVML: once a second for the last hour if a host server runs, once"
        " otherwise; of some seconds before the first look the driver tells the load alone. pid and rank are those of"
        " the target that uses it, NULL if none does."
    )
    columns = (
        Column("ts", "time", "UTC", "time of the sample"),
        Column("device", "text", "", "its name in the target, by the CUDA_VISIBLE_DEVICES of its start: cuda:0"),
        Column("gpu", "int", "", "its number in nvidia-smi"),
        Column("uuid", "text", "", "its UUID; that of the instance under MIG"),
        Column("name", "text", "", "its product name"),
        Column("utilization", "float", "", "share of the time in which some kernel ran, 0 to 1"),
        Column("memory_busy", "float", "", "share of the time in which its memory was read or written, 0 to 1"),
        Column("memory_used", "float", "MiB", "memory in use, by all processes"),
        Column("memory_total", "float", "MiB", "memory it has"),
        Column("power", "float", "W", "power draw"),
        Column("power_limit", "float", "W", "power limit in force"),
        Column("power_default", "float", "W", "power limit that the GPU comes with"),
        Column("temperature", "float", "°C", "temperature of the chip"),
        Column("sm_clock", "float", "MHz", "clock of its processors"),
        Column("sm_clock_max", "float", "MHz", "its maximum"),
        Column("memory_clock", "float", "MHz", "clock of its memory"),
        Column("throttle", "text", "", "reason for reduced clocks: idle, power cap, thermal …; NULL if there is none"),
        Column("ecc_corrected", "int", "", "memory errors corrected since the driver was loaded"),
        Column("ecc_uncorrected", "int", "", "uncorrected memory errors since then"),
        Column(
            "num_xids",
            "int",
            "",
            "Xid errors that the driver has reported since the first sample; NULL if it reports none",
        ),
        Column("last_xid", "int", "", "number of the newest of them"),
    )

    @classmethod
    def take_host(cls, targets: Sequence[Target]) -> tuple[Sequence[Part], Sequence[str]]:
        try:
            readings = _HISTORY.readings()
        except NvmlUnavailable as error:
            return [], [f"gpu.samples has no rows: {error}"]
        uuids = [reading.gpu.uuid for reading in readings if reading.gpu.parent is None]
        visible = {target.pid: visible_devices(_variable(target), uuids) for target in targets}
        return [part for reading in readings for part in _parts(reading, targets, visible)], []


class GpuProcesses(HostTable):
    name = "gpu.processes"
    doc = (
        "Processes that use the GPUs of the host, through NVML, when the query runs: who else has memory there. pid and"
        " rank are those of the target, NULL for a process that is none."
    )
    columns = (
        Column("ts", "time", "UTC", "time of the look"),
        Column("gpu", "int", "", "number of the GPU in nvidia-smi"),
        Column("uuid", "text", "", "its UUID; that of the instance under MIG"),
        Column("process", "int", "", "process id, as the driver knows it"),
        Column("command", "text", "", "name of its program; NULL if it cannot be seen from here"),
        Column("used", "float", "MiB", "memory it uses on the GPU; NULL if the driver does not tell"),
    )

    @classmethod
    def take_host(cls, targets: Sequence[Target]) -> tuple[Sequence[Part], Sequence[str]]:
        try:
            readings = _HISTORY.readings()
        except NvmlUnavailable as error:
            return [], [f"gpu.processes has no rows: {error}"]
        known = {target.pid: target for target in targets}
        return [
            Part(coordinates(known.get(pid)), cls.columns, [_user_columns(reading, pid, used)])
            for reading in readings
            for pid, used in reading.users.items()
        ], []


def _user_columns(reading: Reading, pid: int, used: float) -> dict[str, np.ndarray]:
    try:
        command = Process(pid).read("comm").strip()
    except OSError:
        command = None  # of another PID namespace, or it has ended
    return {
        "ts": reading.times[-1:].view("datetime64[us]"),
        "gpu": _repeated(reading.gpu.index, 1),
        "uuid": _repeated(reading.gpu.uuid, 1),
        "process": _repeated(pid, 1),
        "command": _repeated(command, 1),
        "used": np.array([used]),
    }


def owners(uuid: str, users: Collection[int], visible: dict[int, list[str]]) -> list[int]:
    """Return the targets in `visible` that use a GPU: those with a context on it, or else, in a container whose PIDs
    the driver does not know, those that see no other GPU and have its driver open."""
    return [pid for pid in visible if pid in users] or [
        pid for pid, seen in visible.items() if seen == [uuid] and _has_driver_open(pid)
    ]


def _has_driver_open(pid: int) -> bool:
    """Return whether a process uses CUDA on this host's GPUs; also if that cannot be seen."""
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return True
    for number in numbers:
        with suppress(OSError):  # closed meanwhile, or the process has ended
            if _DRIVER.match(os.readlink(f"{folder}/{number}")):
                return True
    return False


def _parts(reading: Reading, targets: Sequence[Target], visible: dict[int, list[str]]) -> Iterator[Part]:
    found = owners(reading.gpu.uuid, reading.users, visible)
    if not found:
        yield Part(coordinates(None), GpuSamples.columns, [_columns(reading, None)])
    for target in targets:
        if target.pid in found:
            seen = visible[target.pid]
            device = f"cuda:{seen.index(reading.gpu.uuid)}" if reading.gpu.uuid in seen else None
            yield Part(coordinates(target), GpuSamples.columns, [_columns(reading, device)])


def _columns(reading: Reading, device: str | None) -> dict[str, np.ndarray]:
    numbers = dict(zip(NUMBERS, reading.numbers.T, strict=True))
    bits = numbers.pop("throttle_bits")
    words = {bit: None if np.isnan(bit) else throttle_reasons(int(bit)) for bit in set(bits.tolist())}
    size = len(reading.times)
    texts: dict[str, object] = {"device": device, "gpu": reading.gpu.index, "uuid": reading.gpu.uuid}
    return {
        "ts": reading.times.view("datetime64[us]"),
        **{name: _repeated(value, size) for name, value in {**texts, "name": reading.gpu.name}.items()},
        **numbers,
        "throttle": np.array([words.get(bit) for bit in bits.tolist()], object),
    }


def _repeated(value: object, size: int) -> np.ndarray:
    column = np.empty(size, object)
    column[:] = value
    return column


def _variable(target: Target) -> str | None:
    """CUDA_VISIBLE_DEVICES as the target was started with it; None where it is not set or cannot be read."""
    try:
        with open(f"/proc/{target.pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return None
    name = b"CUDA_VISIBLE_DEVICES="
    return next((os.fsdecode(entry[len(name) :]) for entry in entries if entry.startswith(name)), None)
