"""torch.compile has broken the graph.

At a graph break compiled code ends, Python runs, and compiled code begins anew: what is fused gets smaller, and small
kernels cost more than they compute. A `print`, `.item()`, or a call that Dynamo does not know is enough. What follows a
break is a function of its own (`torch_dynamo_resume_in_…`), whose recompilations are counted here. Breaks that torch
makes itself around a model under DDP are no fault of the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
WITH resumed AS (SELECT count(*) AS resumed, sum(duration) AS spent FROM torch.compile
    WHERE event = 'recompile' AND function LIKE 'torch_dynamo_resume_in_%')
SELECT function, file, lineno, count(*) AS breaks, min(step) AS since, arg_max(reason, ts) AS reason,
    any_value(resumed) AS resumed, any_value(spent) / (SELECT sum(duration) FROM python.steps) AS spent
FROM torch.compile, resumed WHERE event = 'graph_break' GROUP BY function, file, lineno
UNION ALL BY NAME SELECT NULL AS function, 0 AS breaks, 0 AS since FROM torch.compile LIMIT 100
"""


#: The file of DDP's own forward, or what a reason says of it.
_OF_DDP = re.compile(r"/torch/nn/parallel/distributed\.py |DistributedDataParallel\._inside_ddp_forward")


def _is_torchs(row: Row) -> bool:
    return bool(_OF_DDP.search(f"{row['file']} {row['reason'] or ''}"))


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("torch.compile has compiled nothing since the recorder came")
    lines = sorted((row for row in rows if row["breaks"] and not _is_torchs(row)), key=lambda row: -row["breaks"])
    if sum(row["breaks"] for row in lines) < limits["breaks"]:
        return
    resumed = lines[0]["resumed"]
    again = (f"the code behind a break was compiled {resumed} times more",) if resumed else ()
    yield Finding(
        f"torch.compile broke the graph at {len(lines)} {'lines' if lines[1:] else 'line'}",
        Certainty.LIKELY if resumed else Certainty.POSSIBLE,
        share=min(1.0, lines[0]["spent"] or 0.0) if resumed else 0.0,
        since_step=min(row["since"] for row in lines),
        evidence=(
            *(
                f"{row['file']}:{row['lineno']} in {row['function']}: {row['reason'] or 'no reason was recorded'}"
                for row in lines[:5]
            ),
            *again,
        ),
        advice=(
            "take prints, .item() and other reads of values out of the compiled function",
            "fullgraph=True makes the first break an error, with its stack",
        ),
        try_first="torch.compile(model, fullgraph=True)",
    )


RULE = Rule(
    "graph-breaks",
    "speed",
    "Has torch.compile broken the graph?",
    SQL,
    of_each_rank(judge),
    (Threshold("breaks", 1, "graph breaks recorded"),),
)
