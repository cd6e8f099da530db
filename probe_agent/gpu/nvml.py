"""GPUs of the host as NVIDIA's management library (NVML) shows them.

NVML needs no CUDA context, so looking takes no memory of the GPU. What a GPU or driver does not support is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from typing import Any

from probe_agent.units import mib

__all__ = ["NUMBERS", "Gpu", "Nvml", "NvmlUnavailable", "throttle_reasons"]

#: Bits of nvmlDeviceGetCurrentClocksEventReasons.
_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}

#: What is read of each GPU, in this order.
NUMBERS = (
    "utilization", "memory_busy", "memory_used", "memory_total", "power", "power_limit", "power_default", "temperature",
    "sm_clock", "sm_clock_max", "memory_clock", "throttle_bits", "ecc_corrected", "ecc_uncorrected", "num_xids",
    "last_xid",
)  # fmt: skip


def throttle_reasons(bits: int) -> str | None:
    """Return in words what holds the clocks back; None if nothing does."""
    known = [word for bit, word in _REASONS.items() if bits & bit]
    rest = bits & ~sum(_REASONS)
    return ", ".join([*known, *([f"unknown {rest:#x}"] if rest else [])]) or None


class NvmlUnavailable(Exception):
    """This host has no NVML; says why."""


@dataclass(frozen=True)
class Gpu:
    """A GPU, or an instance of one (MIG)."""

    uuid: str
    index: int
    name: str
    handle: Any  # NVML's own
    parent: str | None = None  # UUID of the GPU that it is an instance of


class Nvml:
    """NVML, open until `close`."""

    def __init__(self) -> None:
        """Raises NvmlUnavailable."""
        try:
            import pynvml  # type: ignore[import-untyped]  # 20 ms that every server and query worker would pay
        except ImportError:
            raise NvmlUnavailable("nvidia-ml-py is not installed with Probe") from None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlUnavailable(f"NVML says: {error}") from None
        self.gpus = [gpu for index in range(self._ask(pynvml.nvmlDeviceGetCount) or 0) for gpu in self._gpus_at(index)]
        self._xids: dict[str, tuple[int, int]] = {}
        self._events = self._listen()

    def close(self) -> None:
        """Shut the library down."""
        if self._events is not None:
            self._ask(self._nvml.nvmlEventSetFree, self._events)
        self._ask(self._nvml.nvmlShutdown)

    def look(self, gpu: Gpu) -> tuple[float, ...]:
        """Return the `NUMBERS` of a GPU now."""
        nvml, handle = self._nvml, gpu.handle
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._memory(handle)
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        xids = self._xids.get(gpu.uuid, (0, nan))
        return (
            nan if rates is None else rates.gpu / 100,
            nan if rates is None else rates.memory / 100,
            nan if memory is None else mib(memory.used),
            nan if memory is None else mib(memory.total),
            self._number(nvml.nvmlDeviceGetPowerUsage, handle) / 1000,
            self._number(nvml.nvmlDeviceGetEnforcedPowerLimit, handle) / 1000,
            self._number(nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle) / 1000,
            self._number(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            self._number(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            self._number(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
            self._number(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            self._number(reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
            self._errors(handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            self._errors(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            nan if self._events is None else xids[0],
            nan if self._events is None else xids[1],
        )

    def load_before(self, gpu: Gpu) -> list[tuple[int, float]]:
        """Return the load that the driver itself has sampled, of the last 14 s on an H200 and in 3 ms: for each second,
        its end in microseconds since 1970 and the share of it in which a kernel ran. Empty if it keeps none."""
        nvml = self._nvml
        answer = self._ask(nvml.nvmlDeviceGetSamples, gpu.handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
        seconds: dict[int, list[float]] = {}
        for sample in answer[1] if answer is not None else ():
            seconds.setdefault(sample.timeStamp // 1_000_000 + 1, []).append(sample.sampleValue.uiVal / 100)
        return [(second * 1_000_000, sum(loads) / len(loads)) for second, loads in sorted(seconds.items())[:-1]]

    def users(self, gpu: Gpu) -> dict[int, float]:
        """Return the processes with a CUDA context on a GPU: PID, as the driver knows it, and MiB they use there."""
        running = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, gpu.handle)
        return {
            process.pid: nan if process.usedGpuMemory is None else mib(process.usedGpuMemory)
            for process in running or ()
        }

    def note_xids(self) -> None:
        """Read the Xid errors that the driver has reported since the last call; never waits."""
        while self._events is not None:
            event = self._ask(self._nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:  # none is left
                return
            uuid = self._ask(self._nvml.nvmlDeviceGetUUID, event.device)
            self._xids[str(uuid)] = (self._xids.get(str(uuid), (0, 0))[0] + 1, int(event.eventData))

    def _memory(self, handle: Any) -> Any:
        """Return the memory as nvidia-smi shows it: what the driver reserves for itself is not in use. A driver older
        than 510 counts it as used."""
        of_driver = getattr(self._nvml, "nvmlMemory_v2", None)
        memory = None if of_driver is None else self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle, of_driver)
        return memory or self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle)

    def _gpus_at(self, index: int) -> list[Gpu]:
        """Return the GPU with a number and its instances; none if the driver has lost it."""
        nvml = self._nvml
        handle = self._ask(nvml.nvmlDeviceGetHandleByIndex, index)
        uuid = None if handle is None else self._ask(nvml.nvmlDeviceGetUUID, handle)
        if uuid is None:
            return []
        whole = Gpu(uuid, index, self._ask(nvml.nvmlDeviceGetName, handle) or "unknown", handle)
        found = [whole]
        for number in range(self._ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            instance = self._ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if instance is not None:
                uuid, name = nvml.nvmlDeviceGetUUID(instance), nvml.nvmlDeviceGetName(instance)
                found.append(Gpu(uuid, index, name, instance, whole.uuid))
        return found

    def _listen(self) -> Any:
        """Make the driver report Xid errors from now on; None if it does not."""
        nvml = self._nvml
        events = self._ask(nvml.nvmlEventSetCreate)
        if events is None:
            return None
        try:
            for gpu in self.gpus:
                if gpu.parent is None:
                    nvml.nvmlDeviceRegisterEvents(gpu.handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError:
            self._ask(nvml.nvmlEventSetFree, events)
            return None
        return events

    def _errors(self, handle: Any, kind: int) -> float:
        return self._number(self._nvml.nvmlDeviceGetTotalEccErrors, handle, kind, self._nvml.NVML_VOLATILE_ECC)

    def _number(self, question: Callable[..., Any], *arguments: Any) -> float:
        answer = self._ask(question, *arguments)
        return nan if answer is None else float(answer)

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """Return what NVML answers; None if this GPU or driver does not support the question."""
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None
