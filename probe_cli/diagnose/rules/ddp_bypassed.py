"""DistributedDataParallel is there, and the model is trained past it.

DDP averages gradients in the backward of its own forward. A loop that calls the wrapped model, `ddp.module(x)` or a
method of it, trains on each rank alone: no error, and every rank ends with a model of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Asked, Limits, Rule, Threshold

__all__ = ["RULE"]

SQL = """
SELECT (SELECT any_value(place) FROM torch.modules WHERE depth = 0 AND class = 'DistributedDataParallel') AS place,
    trace.*, (SELECT count(*) FROM python.steps WHERE backward > 0) AS steps,
    (SELECT count(*) FROM python.collectives WHERE step >= 0 AND op NOT LIKE '%barrier%'
        AND phase IN ('backward', 'optimizer', 'other') AND coalesce(bytes, 1024) >= 1024) AS exchanges
FROM (SELECT count(*) FILTER (module = 'DistributedDataParallel') AS wrapper,
    count(DISTINCT step) FILTER (stage = 'backward') AS sampled, mode(module) FILTER (stage = 'backward') AS called
    FROM python.torch_trace) AS trace
"""


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    told = [(one, row) for one in asked if one.world_size > 1 for row in one.rows if row["place"] is not None]
    if not told:
        raise NotApplicable("no model is wrapped in DistributedDataParallel")
    known = [(one, row) for one, row in told if row["steps"] >= limits["steps"] and row["sampled"] >= limits["sampled"]]
    if not known:
        raise NoEvidence("too few sampled steps with a backward are recorded: ask again later")
    past = [(one, row) for one, row in known if not row["wrapper"] and not row["exchanges"]]
    if past:
        row = past[0][1]
        yield Finding(
            "the model is trained past its DistributedDataParallel: gradients are not averaged",
            Certainty.CERTAIN,
            share=1.0,
            ranks=tuple(sorted(one.rank for one, _ in past)),
            where=str(row["place"]),
            evidence=(
                f"in {row['sampled']} sampled steps the wrapper was never called, {row['called']} inside it was",
                f"no collective in {row['steps']:,} steps with a backward",
            ),
            advice=(
                "call the wrapper, not ddp.module: a method of the model goes into its forward",
                "begin anew from the weights of one rank: those of the others have gone their own way",
            ),
            try_first="output = ddp(inputs)",
        )


RULE = Rule(
    "ddp-bypassed",
    "numbers",
    "Does training go through DistributedDataParallel where there is one?",
    SQL,
    judge,
    (
        Threshold("steps", 20, "steps with a backward needed to judge"),
        Threshold("sampled", 2, "sampled steps needed to judge"),
    ),
    explains=("replicas-differ",),
    is_live=True,
)
