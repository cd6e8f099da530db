"""NVML on a host with two GPUs of which the driver has lost one, as after an Xid 79: the other one is still shown."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pynvml
import pytest

from probe_agent.gpu.nvml import NUMBERS, Nvml

MIB = 2**20


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A driver, of which each function that this test does not name is unsupported; yields what is freed."""
    freed: list[str] = []

    def unsupported(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def handle(index: int) -> str:
        if index == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return "second"

    def memory(of: str, version: int | None = None) -> SimpleNamespace:
        """Return the memory in use, in which the first version of the call counts the driver's own."""
        return SimpleNamespace(used=(3 if version else 600) * MIB, total=1000 * MIB)

    for name in dir(pynvml):
        if name.startswith("nvmlDevice") or name.startswith("nvmlEventSet"):
            monkeypatch.setattr(pynvml, name, unsupported)
    given = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: freed.append("library"),
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetUUID": lambda of: f"GPU-{of}",
        "nvmlDeviceGetName": lambda of: "NVIDIA Test",
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlEventSetCreate": lambda: "events",
        "nvmlEventSetFree": lambda events: freed.append(events),
    }
    for name, function in given.items():
        monkeypatch.setattr(pynvml, name, function)
    return freed


def test_a_lost_gpu_does_not_hide_the_others(driver: list[str]) -> None:
    nvml = Nvml()

    numbers = dict(zip(NUMBERS, nvml.look(nvml.gpus[0]), strict=True))
    nvml.close()

    assert [(gpu.uuid, gpu.index) for gpu in nvml.gpus] == [("GPU-second", 1)]
    assert (numbers["memory_used"], numbers["memory_total"]) == (3.0, 1000.0), "without what the driver keeps"
    assert numbers["power"] != numbers["power"], "unsupported: NaN"
    assert driver == ["events", "library"], "no event is reported, so the set is given back at once"
