"""What recording costs a job on the device, in a few blocks; `python -m benchmarks.gpu` measures it properly."""

from __future__ import annotations

import random
from statistics import median

import pytest
from support.commands import ROOT

from benchmarks.agent import attach, detach
from benchmarks.attach import attach_once
from benchmarks.process import Block, Program

from .findings import Findings
from .machine import Machine

#: Steps a block.
STEPS = {"gpt": 30, "small": 600}
ARMS: dict[str, dict[str, object]] = {"default": {}, "every step": {"trace.every": 1, "trace.budget": 0}}
ROUNDS = 3
#: A first look says no more than this about the cost: three blocks are no measurement.
LIMIT = 0.10


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as in the folder of the project, as every command of benchmarks is."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")


@pytest.mark.timeout(170)
@pytest.mark.parametrize("model", list(STEPS))
def test_recording_costs_little(model: str, machine: Machine, here: None, report: Findings) -> None:
    steps = STEPS[model] if machine.has_gpu else 10
    blocks: dict[str, list[Block]] = {"bare": [], **{arm: [] for arm in ARMS}}
    with Program("device_blocks", "--model", model, "--device", machine.kind) as program:
        program.block(steps=2 * steps)
        for _ in range(ROUNDS if machine.has_gpu else 1):
            for arm in random.sample(list(blocks), len(blocks)):
                if arm != "bare":
                    attach(program, 5, ARMS[arm], settle_s=1.0)
                blocks[arm].append(program.block(steps=steps))
                if arm != "bare":
                    detach(program, 5)
        attached = attach_once(program, {"seconds": 2.5})

    took = {arm: median(block.wall_s / block.num_pieces for block in each) for arm, each in blocks.items()}
    for arm in ARMS:
        share = took[arm] / took["bare"] - 1
        shown = f"{took['bare'] * 1e3:.3f} ms bare, {took[arm] * 1e3:.3f} ms ({share:+.1%})"
        if arm == "default" and machine.has_gpu:
            report.check(f"{model}: a step with the defaults", shown, f"at most {LIMIT:+.0%}", share < LIMIT)
        else:
            report.seen(f"{model}: a step, {arm}", shown)
    report.seen(f"{model}: way in", attached.how)
    report.seen(
        f"{model}: longest step around the attach, ms", f"{attached.gap_s * 1e3:.1f}",
        f"{attached.gap_before_s * 1e3:.1f} before it",
    )  # fmt: skip
    report.seen(f"{model}: thread stopped for the attach, µs", f"{attached.stopped_s * 1e6:.0f}")
