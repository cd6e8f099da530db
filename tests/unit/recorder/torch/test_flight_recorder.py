"""Gaps in Flight Recorder's entries are filled."""

from __future__ import annotations

import gc
import pickle

import pytest

from probe_agent.recorder.torch import flight_recorder

GLOO = {
    "pg_id": 0,
    "process_group": ("0", "default_pg"),
    "collective_seq_id": 3,
    "p2p_seq_id": 0,
    "op_id": 5,
    "profiling_name": "gloo:all_reduce",
    "time_created_ns": 1_700_000_000_123_456_789,
    "input_sizes": [[2, 3], [4]],
    "input_dtypes": ["BFloat16", "Float"],
    "output_sizes": [[2, 3], [4]],
    "output_dtypes": ["BFloat16", "Float"],
    "state": "scheduled",
    "time_discovered_started_ns": None,
    "time_discovered_completed_ns": None,
    "retired": False,
    "timeout_ms": 1_800_000,
    "is_p2p": False,
}


@pytest.mark.parametrize(
    ("backend", "retired", "state"),
    [("gloo", False, "scheduled"), ("gloo", True, "completed"), ("nccl", False, "scheduled"), ("nccl", True, "failed")],
)
def test_a_finished_call_is_completed_on_gloo_and_otherwise_timed_out(backend, retired, state):
    entry = {**GLOO, "retired": retired, "profiling_name": f"{backend}:all_reduce"}

    assert flight_recorder.describe(entry)["state"] == state


def test_several_tensors_are_added_up():
    told = flight_recorder.describe(GLOO)

    assert (told["bytes"], told["dtype"], told["shape"]) == (2 * 6 + 4 * 4, "bfloat16", "[2, 3] +1")
    assert (told["op"], told["backend"], told["seq"], told["ts"]) == ("all_reduce", "gloo", 3, 1_700_000_000_123_456)


def test_an_nccl_entry_keeps_its_own_state_and_times():
    entry = {
        **GLOO,
        "profiling_name": "nccl:_all_gather_base",
        "state": "completed",
        "retired": True,
        "duration_ms": 2.5,
        "time_discovered_completed_ns": 1_700_000_001_000_000_000,
    }

    told = flight_recorder.describe(entry)

    assert (told["op"], told["state"], told["duration"]) == ("all_gather_base", "completed", 0.0025)
    assert told["completed"] == 1_700_000_001_000_000


@pytest.mark.parametrize(
    ("ranks", "text"), [([0], "0"), ([0, 1], "0, 1"), ([0, 1, 2], "0-2"), ([1, 3, 5], "1-5:2"), ([0, 1, 5], "0, 1, 5")]
)
def test_ranks_are_short(ranks, text):
    assert flight_recorder.ranks_text(ranks) == text


def test_a_dump_is_unpickled_without_the_collector_which_is_left_as_the_job_has_it() -> None:
    data = pickle.dumps({"entries": [{"sizes": [[1], [2]], "frames": [{}], "number": at} for at in range(3_000)]})
    gc.collect()
    before = gc.get_stats()[0]["collections"]

    dump = flight_recorder._unpickled(data)

    assert gc.get_stats()[0]["collections"] - before <= 1, "of 15,000 containers"
    assert len(dump["entries"]) == 3_000
    assert gc.isenabled()
    gc.disable()
    try:
        assert flight_recorder._unpickled(data) == dump
        assert not gc.isenabled()
    finally:
        gc.enable()
    with pytest.raises(pickle.UnpicklingError):
        flight_recorder._unpickled(data[:100] + b"\xff" * 50)
    assert gc.isenabled()
