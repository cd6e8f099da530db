"""The GPU waits for Python: kernels are too small, or the host waits in between.

Each operator costs the host some microseconds to launch. When the kernels are shorter than that, or the host reads a
value after each of them, the GPU idles, and the step does not wait for data. Judged by NVML's share of the time in
which a kernel ran, over the seconds of the newest steps: what the GPU did before them, for another job, says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.gpu_load import SQL
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["known"]:
        raise NotApplicable("no GPU of the job is known")
    if row["samples"] < limits["samples"] or row["steps"] < 20:
        raise NoEvidence(f"fewer than {limits['samples']:.0f} samples of the GPU or 20 steps: ask again later")
    waits = (row["waited"] or 0.0) / row["lasted"]
    idle = 1 - row["utilization"]
    if idle < limits["idle"] or waits > idle / 2:
        return
    yield Finding(
        f"the GPU idles {percent(idle)} of the time, and the step does not wait for data: the host is the limit",
        Certainty.LIKELY,
        cost_s=idle * row["usual"],
        share=idle,
        evidence=(f"kernels run {percent(row['utilization'])} of the time; the step waits for data {percent(waits)}",),
        advice=(
            "larger batches: as many launches, more work in each",
            "torch.compile, or CUDA graphs (mode='reduce-overhead'): fewer launches",
            "a fused optimizer: torch.optim.AdamW(..., fused=True)",
            "look for lines that wait for the device: `probe PID profile --steps 3`",
        ),
        try_first="probe PID profile --steps 3",
    )


RULE = Rule(
    "host-bound",
    "speed",
    "Does the GPU wait for the host?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("idle", 0.5, "share of the time in which no kernel runs"),
        Threshold("samples", 10, "samples of the GPU, one a second, needed to judge"),
    ),
    is_live=True,
)
