"""gpu.samples as far as it can be tested without a GPU: its text, its ring, the owner of a GPU, and its rows in SQL."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pynvml
import pytest

from probe_agent.gpu import NUMBERS, Gpu, History, NvmlUnavailable, Reading, throttle_reasons
from probe_agent.gpu.history import INTERVAL_S, KEPT
from probe_agent.gpu.nvml import Nvml
from probe_agent.procfs import read_process
from probe_agent.sql.engine.databases import Database
from probe_agent.sql.engine.source import TableSource
from probe_agent.sql.tables.gpu import GpuSamples, _parts, _variable, owners
from probe_agent.targets import Target
from probe_agent.track import Track


def test_each_reason_that_nvml_has_is_put_into_words() -> None:
    reasons = {
        name: bits
        for name, bits in vars(pynvml).items()
        if name.startswith(("nvmlClocksThrottleReason", "nvmlClocksEventReason")) and not name.endswith(("All", "None"))
    }

    assert len(reasons) > 10
    for name, bits in reasons.items():
        words = throttle_reasons(bits)
        assert words is not None, name
        assert "unknown" not in words, name
    assert throttle_reasons(pynvml.nvmlClocksThrottleReasonNone) is None
    assert throttle_reasons(0x4 | 0x40) == "power cap, thermal (hardware)"
    assert throttle_reasons(0x8 | 1 << 20) == "hardware slowdown, unknown 0x100000"


def test_the_last_hour_is_kept_and_no_more() -> None:
    assert KEPT * INTERVAL_S >= 3600
    track = Track(2, kept=4)

    for second in range(6):
        track.add(second, (second / 2, float("nan")))
    times, numbers = track.read()

    assert times.tolist() == [2, 3, 4, 5]
    assert numbers[:, 0].tolist() == [1.0, 1.5, 2.0, 2.5]


def test_a_gpu_belongs_to_who_has_a_context_on_it() -> None:
    everybody_sees_all = {7: ["GPU-a", "GPU-b"], 8: ["GPU-a", "GPU-b"]}

    assert owners("GPU-a", frozenset({8, 99}), everybody_sees_all) == [8]
    assert owners("GPU-a", frozenset(), everybody_sees_all) == []


def test_where_the_driver_hides_its_processes_who_has_it_open_has_the_only_gpu_it_sees() -> None:
    """A job that trained on the CPU of a host with one GPU was once taken for the one that left it idle."""
    own, hidden = os.getpid(), 2**22 + 1  # whose descriptors cannot be read

    assert owners("GPU-b", frozenset(), {hidden: ["GPU-b"], own: ["GPU-b"], 7: ["GPU-a"]}) == [hidden]


def test_rows_say_whose_they_are_and_what_is_not_known_is_null() -> None:
    numbers = dict.fromkeys(NUMBERS, float("nan")) | {"utilization": 0.5, "throttle_bits": 4.0, "num_xids": 2.0}
    reading = Reading(
        Gpu("GPU-b", 1, "NVIDIA Test", None), frozenset({42}), np.array([1, 2]), np.array([[*numbers.values()]] * 2)
    )
    target = Target("/nowhere", {"host_pid": 42, "rank": 3, "world_size": 8, "host": "here"}, None)
    source = TableSource("gpu.samples", GpuSamples.columns, list(_parts(reading, [target], {42: ["GPU-a", "GPU-b"]})))
    database = Database(512)

    database.show({"gpu.samples": source.register(database.connection)})
    rows = database.connection.execute(
        "SELECT host, pid, rank, ts, device, gpu, utilization, power, throttle, num_xids, ecc_corrected"
        " FROM gpu.samples"
    ).fetchall()

    assert len(rows) == 2
    assert rows[0][:3] == ("here", 42, 3)
    assert rows[0][3].microsecond == 1
    assert rows[0][4:] == ("cuda:1", 1, 0.5, None, "power cap", 2, None)


def test_the_variable_is_the_one_the_process_was_started_with() -> None:
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    started_with = next(
        (e.partition(b"=")[2].decode() for e in entries if e.startswith(b"CUDA_VISIBLE_DEVICES=")), None
    )
    own = read_process(int(Path("/proc/self").readlink().name))
    assert own is not None
    target = Target("/nowhere", {"host_pid": own.pid, "rank": 0, "world_size": 1}, own)

    assert _variable(target) == started_with


def test_without_nvml_sampling_ends_by_itself_and_a_question_says_why() -> None:
    history = History()
    with history.sampling():
        pass

    try:
        Nvml().close()
    except NvmlUnavailable:
        with pytest.raises(NvmlUnavailable, match="NVML says"):
            history.readings()
    else:
        pytest.skip("there is a GPU")
