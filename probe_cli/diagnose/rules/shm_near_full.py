"""/dev/shm is nearly full.

Batches of data-loader workers, NCCL and gloo travel through it. When it is full, a worker dies of a bus error. In a
container it has 64 MiB unless it was started with more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import mebibytes, percent

__all__ = ["RULE"]

SQL = """
SELECT arg_max(shm_used, ts) AS used, arg_max(shm_free, ts) AS free, max(shm_used) AS highest
FROM process.samples WHERE shm_free IS NOT NULL
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if row["used"] is None:
        raise NotApplicable("no /dev/shm")
    size = row["used"] + row["free"]
    share = row["used"] / size if size else 0.0
    if share < limits["share"]:
        return
    yield Finding(
        f"/dev/shm is {percent(share)} full: {mebibytes(row['free'])} of {mebibytes(size)} are left",
        Certainty.CERTAIN,
        evidence=(f"used {mebibytes(row['used'])}, at most {mebibytes(row['highest'])}",),
        advice=(
            "give the container more: --shm-size=8g, or an emptyDir with medium: Memory",
            "fewer workers or a smaller prefetch_factor",
            "remove what ended jobs have left there: `probe clean`, and ls -la /dev/shm",
        ),
        try_first="df -h /dev/shm; ls -laS /dev/shm | head",
    )


RULE = Rule(
    "shm-near-full",
    "memory",
    "Is there room in /dev/shm?",
    SQL,
    of_each_rank(judge),
    (Threshold("share", 0.85, "share of /dev/shm that is in use"),),
    per_host=True,
)
