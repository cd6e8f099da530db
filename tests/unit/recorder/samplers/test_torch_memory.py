"""Rows made of the allocator's statistics and its list of blocks; this machine has no GPU to run it on."""

from __future__ import annotations

import pytest

from probe_agent.recorder.samplers.torch_memory import Memory, Source, largest_free, statistics
from probe_agent.recorder.torch.blocks import by_line

MIB = 2**20


def counter(current: int, peak: int) -> dict[str, dict[str, int]]:
    """Return a counter as in torch.cuda.memory_stats_as_nested_dict."""
    return {"all": {"current": current, "peak": peak, "allocated": 0, "freed": 0}}


def block(size: int, state: str, *frames: tuple[str, str, int]) -> dict[str, object]:
    """Return a block as in torch.cuda.memory_snapshot."""
    listed = [{"name": name, "filename": file, "line": line} for name, file, line in frames]
    return {"size": size, "requested_size": size - 100, "state": state, "frames": listed}


@pytest.mark.torch
def test_a_process_that_uses_no_gpu_has_no_rows(sampling):
    torch = pytest.importorskip("torch")
    it = sampling(Source, Memory, PROBE_MEMORY_HISTORY="1000")

    it.source.tick()

    assert it.rows() == []
    assert not torch.cuda.is_initialized()


def test_statistics_become_columns_in_mib():
    stats = {
        "allocated_bytes": counter(3 * MIB, 5 * MIB),
        "reserved_bytes": counter(8 * MIB, 9 * MIB),
        "inactive_split_bytes": counter(MIB, MIB),
        "segment": counter(4, 4),
        "num_alloc_retries": 2,
        "num_ooms": 1,
    }

    values = statistics(stats)

    names = [column.name for column in Memory.columns[3:] if column.name != "largest_free"]
    shown = dict(zip(names, values, strict=True))
    assert {name: shown[name] for name in names if name != "requested"} == {
        "allocated": 3,
        "peak_allocated": 5,
        "reserved": 8,
        "peak_reserved": 9,
        "inactive": 1,
        "num_segments": 4,
        "retries": 2,
        "ooms": 1,
    }
    assert shown["requested"] < 0, "torch before 2.1 does not count it: NULL"


def test_a_device_that_was_never_used_has_no_row():
    assert statistics({}) is None
    assert statistics({"reserved_bytes": counter(0, 0)}) is None


def test_the_largest_free_block_is_that_of_the_device():
    segments = [
        {"device": 0, "blocks": [block(2 * MIB, "inactive"), block(9 * MIB, "active_allocated")]},
        {"device": 1, "blocks": [block(4 * MIB, "inactive")]},
    ]

    assert [largest_free(segments, device) for device in (0, 1, 2)] == [2, 4, 0]


def test_blocks_are_added_up_by_the_line_outside_torch():
    inside = ("linear", "/site-packages/torch/nn/functional.py", 3)
    mine, other = ("forward", "/home/ada/model.py", 12), ("main", "/home/ada/train.py", 7)
    segments = [
        {
            "device": 0,
            "blocks": [block(MIB, "active_allocated", inside, mine, other), block(5 * MIB, "inactive", mine)],
        },
        {"device": 0, "blocks": [block(2 * MIB, "active_allocated", inside, mine), block(MIB, "active_allocated")]},
    ]

    rows = by_line(segments)

    assert [row[:6] for row in rows] == [
        ["cuda:0", "forward", "/home/ada/model.py", 12, 2, 3.0],
        ["cuda:0", None, None, None, 1, 1.0],
    ]
    assert rows[0][7] == 2.0
