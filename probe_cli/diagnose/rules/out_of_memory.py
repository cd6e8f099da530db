"""An allocation of memory has failed, and the exception has ended the process or a thread.

Torch's allocators, numpy and Python itself each have an exception of their own. The record stays when the process has
ended, so that the cause can be read afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding
from probe_cli.diagnose.raised import place, said
from probe_cli.diagnose.rule import Limits, Row, Rule, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT step, type, message, func, file, lineno, traceback, is_main FROM python.exceptions
WHERE type LIKE '%OutOfMemoryError' OR type LIKE '%MemoryError' OR message LIKE '%out of memory%'
   OR message LIKE '%can''t allocate memory%' OR message LIKE '%Cannot allocate memory%'
   OR message LIKE '%std::bad_alloc%'
   OR message LIKE '%No available memory for the cache blocks%'
ORDER BY ts DESC LIMIT 5
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    for row in rows[:1]:
        text = f"{row['type']}: {row['message'] or ''}"
        device = "cuda" in text.lower() or "OutOfMemoryError" in row["type"] or "HIP" in text
        of_engine = "cache blocks" in text or "KV cache" in text
        advice: tuple[str, ...] = (
            "a smaller batch with gradient accumulation, shorter sequences, activation checkpointing",
            "bf16 autocast; optimizer state sharded (FSDP, ZeRO) or in 8 bit",
        )
        if not device:
            advice = (
                "see which limit it is: `probe PID memory`; ulimit -v, the container's limit, the host's memory",
                "fewer loader workers, or a smaller prefetch_factor; read data as memory maps",
            )
        elif of_engine:
            advice = (
                "give the engine a larger share (gpu_memory_utilization), or let it sleep while the job trains",
                "a shorter max_model_len, or a larger tensor_parallel_size",
            )
        func, file, lineno = place(row) or (row["func"], row["file"], row["lineno"])
        yield Finding(
            f"{'the process' if row['is_main'] else 'a thread'} ended for want of {'device' if device else 'host'}"
            f" memory in {func} at {file.rpartition('/')[2]}:{lineno}",
            Certainty.CERTAIN,
            share=1.0,
            since_step=row["step"] if row["step"] >= 0 else None,
            evidence=(said(row),),
            advice=advice,
            try_first="probe PID memory",
        )


RULE = Rule(
    "out-of-memory",
    "memory",
    "Has an allocation of memory failed?",
    SQL,
    of_each_rank(judge),
    explains=("rank-died", "device-out-of-memory", "memory-limit-near"),
)
