"""NVML with a driver made by hand, on a host with two GPUs of which it has lost one, as after an Xid 79."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pynvml
import pytest

from probe_agent.gpu import History
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


def test_the_first_look_takes_over_the_load_that_the_driver_has_kept(
    driver: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """71 samples of the last 14 s, five a second, as an H200 gave them; the running second is left out."""
    begin = 1_795_701_294
    loads_in_percent = [4] * 10 + [99] * 61
    samples = [
        SimpleNamespace(timeStamp=begin * 1_000_000 + at * 200_000, sampleValue=SimpleNamespace(uiVal=load))
        for at, load in enumerate(loads_in_percent)
    ]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetSamples", lambda handle, kind, since: (1, samples))
    history = History()

    (reading,) = history.readings()
    history.close()

    loads, power = (reading.numbers[:, NUMBERS.index(name)] for name in ("utilization", "power"))
    assert reading.times[:3].tolist() == [(begin + at) * 1_000_000 for at in (1, 2, 3)]
    assert loads[:-1].round(6).tolist() == [0.04] * 2 + [0.99] * 12
    assert len(loads) == 15, "the last one is the look itself"
    assert power[:-1].tolist() != power[:-1].tolist(), "NaN: only the load is kept"
