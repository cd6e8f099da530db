"""Replicas that should hold the same weights do not.

In data-parallel training every rank makes the same update from the same averaged gradients, bit by bit. Where the
checksums of their weights differ at the same step, a rank began with other weights, a gradient was not averaged, or its
hardware computes something else. Each replica then trains a model of its own.

Sharded models are not compared, and ranks that exchange activations in forward are only where torch or a framework
tells their roles: they may hold experts, or parts of layers, of their own.

Ranks that reduce in fewer than half of the steps, as in local SGD and DiLoCo, are to differ in between.

Optimizers that keep no count, such as plain SGD, have their steps counted from the attach, which is another one on each
rank: those of their steps are compared that ended after the same all_reduce, and these are few in the first minutes.

With DDP's join() a rank whose data has ended takes part in the collectives of the others without stepping, so a step of
one number is no longer the same step on all ranks. Those are compared that ended after the same all_reduce.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.replicas import ROLES, by_place, check_replicas
from probe_cli.diagnose.rule import Asked, Limits, Row, Rule, Threshold

__all__ = ["RULE"]

SQL = f"""
WITH reduced AS (SELECT step, seq, bytes, "group" FROM python.collectives WHERE step >= 0 AND op LIKE '%all_reduce%'),
newest AS (SELECT step, max(seq) AS seq FROM reduced WHERE "group" = (SELECT mode("group") FROM reduced) GROUP BY step),
known AS (SELECT bool_and(counted) AS counted FROM (FROM python.steps ORDER BY step DESC LIMIT 100)),
ordered AS (SELECT step, checksum, parameters, row_number() OVER (ORDER BY step DESC) AS number FROM python.replicas),
sums AS (SELECT step, checksum, parameters, seq FROM ordered JOIN known ON number <= if(counted, 40, 400)
    LEFT JOIN newest USING (step))
SELECT (SELECT list({{'step': step, 'checksum': checksum, 'parameters': parameters, 'seq': seq}}) FROM sums) AS sums,
    (SELECT counted FROM known) AS counted, roles.*,
    (SELECT count(*) FROM python.steps WHERE step >= (SELECT min(step) FROM reduced)) AS steps,
    (SELECT count(DISTINCT step) FROM reduced WHERE coalesce(bytes, 1024) > 64) AS reducing
FROM ({ROLES}) AS roles
"""


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    if all(one.world_size < 2 for one in asked):
        raise NotApplicable("one rank")
    told = {one.rank: one.rows[0] for one in asked if one.rows and one.rows[0]["sums"]}
    if len(told) < 2:
        raise NoEvidence("fewer than two ranks have recorded checksums: ask again later")
    check_replicas(told)
    if any(row["sharded"] for row in told.values()):
        raise NotApplicable("the model is sharded: each rank holds a part")
    if any(0 < row["reducing"] < limits["part"] * row["steps"] for row in told.values()):
        raise NotApplicable("ranks average only now and then, as in local SGD: their weights differ in between")
    for ranks in by_place(told):
        yield from _compared(ranks, limits)


def _compared(ranks: dict[int, Row], limits: Limits) -> Iterable[Finding]:
    by = "step" if all(row["counted"] for row in ranks.values()) else "seq"
    at = {rank: {one[by]: one for one in row["sums"] if one[by] is not None} for rank, row in ranks.items()}
    common = sorted(set.intersection(*(set(of) for of in at.values())))
    if by == "seq" and not all(at.values()):
        raise NotApplicable(
            "steps are counted from the attach, and no all_reduce tells which of two ranks are the same"
        )
    if by == "seq" and len(common) < limits["steps"]:
        raise NoEvidence(
            "steps are counted from the attach, and too few are known to be the same on all ranks: ask again later"
        )
    if common and not (common := [step for step in common if _is_one_step(at[rank][step] for rank in at)]):
        raise NotApplicable(
            "ranks make different numbers of steps between the same collectives, as in DDP's join(), so that those of"
            " two ranks cannot be told to be the same"
        )
    differs = [
        step
        for step in common
        if len({at[rank][step]["checksum"] for rank in at}) > 1
        and len({at[rank][step]["parameters"] for rank in at}) == 1
    ]
    if len(differs) < limits["steps"] or not common or differs[-1] != common[-1]:
        return
    sums = Counter(at[rank][differs[-1]]["checksum"] for rank in at)
    usual, num = sums.most_common(1)[0]
    odd = (
        tuple(sorted(rank for rank in at if at[rank][differs[-1]]["checksum"] != usual))
        if num > 1
        else tuple(sorted(at))
    )
    first, last = (at[odd[0]][moment]["step"] for moment in (differs[0], differs[-1]))
    since = f"since step {first}" if common[0] != differs[0] else f"since step {first} or earlier"
    yield Finding(
        f"the weights of data-parallel replicas differ, {since}",
        Certainty.CERTAIN,
        share=1.0,
        ranks=odd,
        since_step=first,
        evidence=(
            f"{len(sums)} different checksums on {len(at)} ranks after step {last}; {len(differs)} of"
            f" {len(common)} common steps differ",
            f"{at[next(iter(at))][differs[-1]]['parameters']} parameters compared",
        ),
        advice=(
            "call the model through its DDP wrapper, not model.module, and keep no_sync() to all but the last backward",
            "begin with the same weights: broadcast them from rank 0, or set the same seed before the model is made",
            "look for what changes weights on one rank alone: loading, clipping, an average of weights, a learning rate"
            " that follows the rank's own loss",
            "where one rank alone has it and the code is the same: take its host out, and test its memory",
        ),
        try_first="for p in model.parameters(): torch.distributed.broadcast(p.data, 0)",
    )


def _is_one_step(rows: Iterable[Row]) -> bool:
    """Whether the steps of some ranks ended after the same all_reduce, as far as that is known."""
    return len({row["seq"] for row in rows if row["seq"] is not None}) < 2


RULE = Rule(
    "replicas-differ",
    "numbers",
    "Do data-parallel replicas hold the same weights?",
    SQL,
    judge,
    (
        Threshold("steps", 2, "common steps with different checksums"),
        Threshold("part", 0.5, "part of the steps in which ranks reduce, below which they differ by intention"),
    ),
    explains=("loss-rises", "loss-volatile"),
)
