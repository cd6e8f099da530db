"""Some ranks get more to compute in each step than others.

The rank with the largest batches, or the longest sequences, is last in every step, and looks like a slow rank. Nothing
is wrong with it or with its host: the data is to be shared out evenly. Sizes are those of the outermost module's first
input in sampled steps, or else of the data loader's batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import ELEMENTS, Asked, Limits, Row, Rule, Threshold
from probe_cli.text import num_ranks

__all__ = ["RULE"]

SQL = f"""
WITH seen AS (FROM python.torch_trace WHERE stage = 'forward' AND phase = 'train' AND NOT contains(module, '.')
    AND input_shapes <> '' ORDER BY step DESC LIMIT 50)
SELECT (SELECT count(*) FROM python.steps) AS steps,
    (SELECT avg(batch_size) FROM (FROM python.steps ORDER BY step DESC LIMIT 200) WHERE batch_size > 0) AS samples,
    (SELECT avg({ELEMENTS}) FROM seen) AS elements,
    (SELECT avg(forward) FILTER (step IN (SELECT step FROM seen)) / avg(forward) FROM python.steps
        WHERE step >= (SELECT min(step) FROM seen)) AS sampled,
    (SELECT max(stage) FROM python.roles) AS stage, (SELECT max(pp) FROM python.roles) AS pp,
    (SELECT count(*) FROM python.collectives WHERE peer IS NOT NULL) AS sends
"""


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    if all(one.world_size < 2 for one in asked):
        raise NotApplicable("one rank")
    rows = {one.rank: one.rows[0] for one in asked if one.rows and one.rows[0]["steps"] >= limits["steps"]}
    for name, what in (("samples", "samples"), ("elements", "elements of input")):
        sizes = {rank: row[name] for rank, row in rows.items() if row[name] and not _is_stage(row, name)}
        if len(sizes) < 2:
            continue
        usual = median(sizes.values()) if len(sizes) > 2 else min(sizes.values())
        more = sorted(rank for rank, size in sizes.items() if size > (1 + limits["more"]) * usual)
        if name == "elements":
            more = [rank for rank in more if not _is_by_turns(rank, rows, limits)]
        if more:
            worst = max(more, key=lambda rank: sizes[rank])
            yield Finding(
                f"{num_ranks(more)} get{'s' if not more[1:] else ''} larger batches than the others:"
                f" {sizes[worst]:.0f} {what} a step, usual {usual:.0f}",
                Certainty.LIKELY,
                ranks=tuple(more),
                evidence=(", ".join(f"rank {rank}: {size:.0f}" for rank, size in sorted(sizes.items())[:8]),),
                advice=(
                    "share the data out evenly: DistributedSampler, the same batch_size and drop_last on all ranks",
                    "put samples together by length, so that all ranks get as many tokens in a step",
                ),
                try_first="DataLoader(..., sampler=DistributedSampler(dataset), drop_last=True)",
            )
        return
    if any(_is_stage(row, "elements") for row in rows.values()):
        raise NotApplicable("ranks that send to each other may be stages of a pipeline, with inputs of their own")
    raise NoEvidence("no sizes of batches are recorded of two ranks: neither a DataLoader nor a sampled step")


def _is_stage(row: Row, name: str) -> bool:
    """Return whether a rank may be a stage of a pipeline, which has an input of its own. One made by hand is known by
    its sends and receives alone."""
    return row["pp"] is not None or row["stage"] is not None or (name == "elements" and row["sends"] > 0)


def _is_by_turns(rank: int, rows: Mapping[int, Row], limits: Limits) -> bool:
    """Return whether the large batches go round, and came to this rank in the few steps that were sampled: they are
    longer than its other steps then, and those of the other ranks are not."""
    others = [row["sampled"] for one, row in rows.items() if one != rank and row["sampled"]]
    sampled = rows[rank]["sampled"]
    return bool(others and sampled) and sampled > (1 + limits["more"]) * median(others)


RULE = Rule(
    "uneven-batches",
    "speed",
    "Do all ranks get batches of one size?",
    SQL,
    judge,
    (
        Threshold("more", 0.25, "by how much a rank's batches exceed the usual ones"),
        Threshold("steps", 20, "steps needed to judge"),
    ),
    explains=("rank-holds-up", "waits-rotate", "collectives-dominate"),
)
