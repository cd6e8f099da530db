"""The optimizer goes through all rows of an embedding, of which a step uses few.

The gradient of an embedding is as large as its table by default: backward fills it with zeros, and Adam reads and
writes a gradient, two moments and a weight for each row, though the batch has looked up a few thousand. With hundreds
of thousands of users, items or words that becomes most of the step. Held against each other are the rows of the table
and the indices that it was given in a sampled step; what it costs is its part of the optimizer's time. A table that is
the output layer as well gets a gradient for each row, and is not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import ELEMENTS, Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent, seconds

__all__ = ["RULE"]

SQL = f"""
WITH kinds AS (SELECT module, "class" AS kind, own_parameters FROM torch.modules),
held AS (FROM torch.parameters WHERE trainable AND optimizer IS NOT NULL AND optimizer NOT LIKE 'Sparse%'),
looked_up AS (SELECT module, step, sum({ELEMENTS}) AS indices FROM python.torch_trace
    WHERE stage = 'forward' AND phase = 'train' GROUP BY ALL),
tables AS (SELECT held.module, held.parameters, held.optimizer,
        try_cast(split_part(held.shape, 'x', 1) AS BIGINT) AS num_rows,
        (SELECT median(indices) FROM looked_up WHERE looked_up.module = held.module) AS indices
    FROM held JOIN kinds USING (module) WHERE kinds.kind IN ('Embedding', 'EmbeddingBag')
    AND NOT EXISTS (FROM kinds AS other WHERE other.kind NOT IN ('Embedding', 'EmbeddingBag')
        AND other.own_parameters BETWEEN held.parameters AND held.parameters + num_rows))
SELECT tables.*, (SELECT sum(parameters) FROM held) AS all_parameters, times.*
FROM tables, (SELECT avg(duration) AS duration, avg(optimizer) AS optimizer_s, avg(backward) AS backward,
    count(*) AS steps FROM (FROM python.steps WHERE NOT sampled ORDER BY step DESC LIMIT 200)) AS times
ORDER BY tables.parameters DESC
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no optimizer holds an embedding of torch")
    large = [row for row in rows if row["num_rows"] and row["num_rows"] >= limits["rows"]]
    if not large:
        return
    if all(row["indices"] is None for row in large) or large[0]["steps"] < limits["steps"]:
        raise NoEvidence("no sampled step tells how many rows of an embedding it uses: ask again later")
    idle = [row for row in large if row["indices"] and row["num_rows"] >= limits["idle"] * row["indices"]]
    first = large[0]
    part = sum(row["parameters"] for row in idle) / first["all_parameters"]
    cost = part * (first["optimizer_s"] or 0.0)
    if not idle or cost < limits["share"] * first["duration"]:
        return
    yield Finding(
        f"{first['optimizer']} updates every row of embeddings, of which a step uses few:"
        f" {percent(cost / first['duration'])} of the time",
        Certainty.LIKELY,
        cost_s=cost,
        share=cost / first["duration"],
        where=str(idle[0]["module"]),
        evidence=(
            *(
                f"{row['module']}: {row['num_rows']:,} rows, at most {row['indices']:,.0f} of them used in a step"
                for row in idle[:3]
            ),
            f"they are {percent(part)} of the parameters; the optimizer takes {seconds(first['optimizer_s'] or 0.0)} of"
            f" a step of {seconds(first['duration'])}, backward {seconds(first['backward'] or 0.0)}",
        ),
        advice=(
            "make their gradients sparse, and give them an optimizer of their own: nn.Embedding(…, sparse=True) and"
            " torch.optim.SparseAdam",
            "or keep one state for each row: a row-wise Adagrad, as in torchrec",
            "hash rare rows into fewer",
        ),
        try_first="torch.optim.SparseAdam([table.weight])  # with nn.Embedding(…, sparse=True)",
    )


RULE = Rule(
    "embedding-dense",
    "speed",
    "Does the optimizer update rows of an embedding that the step has not used?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("rows", 10_000, "rows of a table that is looked at"),
        Threshold("idle", 10, "rows of the table for each index that a step looks up"),
        Threshold("share", 0.15, "part of the time that the optimizer takes for such rows"),
        Threshold("steps", 20, "steps needed to judge"),
    ),
    is_live=True,
)
