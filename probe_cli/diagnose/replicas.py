"""The ranks that train replicas of one model, by their collectives and roles: for the rules that compare replicas.

DDP gathers once when it is made: a model is taken to be sharded where that happens in forward or backward. Where ranks
exchange tokens by all_to_all, each may have experts of its own, and where they add up activations in forward, its part
of each layer, and where gradients are averaged in groups of some ranks, each group a model, or layers, of its own:
then only what torch or a framework tells of the ranks' roles says who is a replica of whom.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from .finding import NotApplicable
from .rule import Row

__all__ = ["ROLES", "by_place", "check_replicas"]

#: SQL: one row of what is known of a rank's part in the job.
ROLES = """
SELECT (SELECT any_value(dp) FROM python.roles) AS dp, (SELECT any_value(concat_ws('/', tp, pp, cp, ep, stage))
        FROM python.roles) AS place,
    calls.*
FROM (SELECT count(*) FILTER (op LIKE '%reduce_scatter%' OR op LIKE '%all_gather%' AND phase IN ('forward', 'backward'))
        AS sharded,
    count(*) FILTER (op LIKE '%all_to_all%' AND phase IN ('forward', 'backward')
        OR op LIKE '%all_reduce%' AND phase = 'forward' AND coalesce(bytes, 1024) >= 1024) AS exchanged,
    count(DISTINCT step) FILTER (op LIKE '%all_reduce%' AND phase = 'forward' AND coalesce(bytes, 1024) > 64) AS summed,
    count(DISTINCT step) AS called,
    count(*) FILTER (op LIKE '%all_reduce%' AND phase IN ('backward', 'other', 'optimizer')) AS averaged,
    count(*) FILTER (op LIKE '%all_reduce%' AND phase IN ('backward', 'other', 'optimizer')
        AND coalesce(bytes, 1024) > 64 AND "group" IN (
            SELECT "group" FROM python.groups WHERE size BETWEEN 2 AND world_size - 1)) AS averaged_in_part
    FROM python.collectives WHERE step >= 0) AS calls
"""


def check_replicas(told: Mapping[int, Row]) -> None:
    """Raise NotApplicable where nobody can say which of these ranks, each with its row of `ROLES`, are replicas."""
    if not all(row["dp"] is not None or row["averaged"] for row in told.values()):
        raise NotApplicable("no data-parallel replicas are known")
    if any(_exchanges(row) and row["dp"] is None for row in told.values()):
        raise NotApplicable(
            "ranks exchange activations in forward: each may hold experts, or parts of layers, of its own"
        )
    if any(row["averaged_in_part"] and row["dp"] is None for row in told.values()):
        raise NotApplicable("gradients are averaged in groups of some ranks: each group may have layers of its own")


def by_place(told: Mapping[int, Row]) -> list[dict[int, Row]]:
    """Return the ranks that do the same work: those of one stage, or of one part of each layer, together."""
    places: dict[str, dict[int, Row]] = defaultdict(dict)
    for rank, row in told.items():
        places[row["place"] or ""][rank] = row
    return list(places.values())


def _exchanges(row: Row) -> bool:
    """Return whether ranks add up activations. A few numbers are none: a log adds them up now and then, also before the
    next forward, and a loop asks in each step whether all ranks go on."""
    return bool(row["exchanged"]) or row["summed"] * 2 >= max(1, row["called"])
