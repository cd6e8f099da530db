"""What a device's memory is put down to, with the numbers of a GPT on an H200."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probe_agent.wire import TargetInfo
from probe_cli.cluster.memory.look import Device, Failed, Look, Tensors
from probe_cli.cluster.memory.report import Report, notes_on

GPT = Device("cuda:0", allocated=4_925.1, reserved=15_080.0, peak=14_700.0, retries=0, new_retries=0, ooms=0)


def report(device: Device, target: TargetInfo) -> Report:
    tensors = tuple(
        Tensors(kind, "cuda:0", mib, mib)
        for kind, mib in (("parameters", 512.1), ("gradients", 512.1), ("optimizer state", 1_024.2))
    )
    return Report(target, Look(tensors=tensors, devices=(device,)))


@pytest.fixture
def target() -> TargetInfo:
    return TargetInfo(
        pid=7, rank=0, local_rank=0, world_size=1, host="node", uid=0, alive=True, state="running", step=9,
        step_age_s=0.1, age_s=60.0, command=("python", "train.py"), python="3.12.3", torch="2.11.0", version="0",
        how="planned", attached_at=0.0, folder="/nowhere",
    )  # fmt: skip


def test_what_is_free_between_two_steps_is_no_waste(target: TargetInfo) -> None:
    parts = {part.name: part.mib for part in report(GPT, target).parts if part.place == "cuda:0"}

    assert parts["free now, in use at the peak"] == pytest.approx(14_700 - 4_925.1)
    assert parts["reserved and never in use"] == pytest.approx(380)
    assert sum(parts.values()) == pytest.approx(GPT.reserved)
    assert not [note for note in notes_on(report(GPT, target)) if "expandable" in note]


def test_what_was_never_in_use_is_told_with_the_remedy(target: TargetInfo) -> None:
    notes = notes_on(report(replace(GPT, peak=8_000.0), target))

    assert [note for note in notes if "6.9 GiB more than were ever in use" in note and "expandable_segments" in note]


def test_an_allocation_that_failed_is_told_with_the_line_that_held_most(target: TargetInfo) -> None:
    failed = Failed("cuda:0", 256, 128.0, 14_273.1, 14_276.0, 14_315.6, "/job/train.py", 80, 13_900.0)
    ended = Report(target, Look(devices=(GPT,), failed=failed))
    without_lines = replace(ended, look=replace(ended.look, failed=replace(failed, file=None, lineno=None)))

    (note,) = [note for note in notes_on(ended) if "failed" in note]
    (other,) = [note for note in notes_on(without_lines) if "failed" in note]

    assert "128 MiB on cuda:0 failed in step 256, with 13.9 GiB in tensors" in note
    assert note.endswith("train.py:80 held 13.6 GiB")
    assert "memory.history" in other
