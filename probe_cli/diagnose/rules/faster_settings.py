"""Settings that would serve on this GPU are not in use.

Advice, not a fault: TF32 for float32 matrices on GPUs that have it, a fused optimizer, pinned memory in the data
loader, torch.compile. Whether they help this job only a trial tells. Attention cannot be seen from here: torch's
scaled_dot_product_attention chooses a fused kernel by itself. Nothing is said of a job on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT
    (SELECT count(*) FROM torch.modules WHERE depth = 0 AND device LIKE '%cuda%') AS on_gpu,
    (SELECT bool_and(dtype LIKE '%float32%' AND dtype NOT LIKE '%16%') FROM torch.modules
        WHERE depth = 0 AND device LIKE '%cuda%') AS all_float32,
    (SELECT count(autocast) FROM torch.modules WHERE depth = 0 AND device LIKE '%cuda%') AS autocast,
    (SELECT bool_or(compiled) FROM torch.modules) AS compiled, (SELECT count(*) FROM torch.compile) AS compilations,
    (SELECT max(value) FROM process.env WHERE name = 'torch.get_float32_matmul_precision()') AS precision,
    (SELECT max(value) FROM process.env WHERE name = 'cuda capability') AS capability,
    (SELECT list(DISTINCT optimizer) FROM torch.optimizers WHERE device LIKE '%cuda%'
        AND (options ->> 'fused') IN ('false', 'null') AND optimizer IN ('Adam', 'AdamW', 'SGD')) AS unfused,
    (SELECT list(DISTINCT place) FROM torch.dataloaders WHERE NOT pin_memory) AS unpinned
"""
#: From this compute capability on a GPU has TF32 and bfloat16.
AMPERE = 8


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["on_gpu"]:
        raise NotApplicable("no model is on a GPU")
    major = (row["capability"] or "0").strip("()").partition(".")[0].partition(",")[0]
    has_halves = major.isdigit() and int(major) >= AMPERE
    advice = []
    if has_halves and row["all_float32"] and not row["autocast"]:
        advice.append("bfloat16 for most of the work: torch.autocast('cuda', dtype=torch.bfloat16)")
        if row["precision"] == "highest":
            advice.append("TF32 for float32 matrices: torch.set_float32_matmul_precision('high')")
    if row["unfused"]:
        advice.append(f"a fused optimizer: {row['unfused'][0]}(..., fused=True)")
    if row["unpinned"]:
        advice.append("pinned memory: DataLoader(..., pin_memory=True), and .to(device, non_blocking=True)")
    if not row["compiled"] and not row["compilations"]:
        advice.append("torch.compile(model)")
    if advice:
        yield Finding(
            f"{len(advice)} settings that may make the job faster are not in use",
            Certainty.POSSIBLE,
            share=0.0,
            advice=tuple(advice),
            try_first=advice[0],
        )


RULE = Rule(
    "faster-settings",
    "speed",
    "Are settings in use that serve on this GPU?",
    SQL,
    of_each_rank(judge),
    is_live=True,
)
