"""Data-parallel ranks train on the same batches.

Each rank is to see a part of the data of its own. Where a loader gives every rank all of it, and all ranks were seeded
alike, or the same part, as a DistributedSampler does that was told a wrong rank or number of ranks, replicas compute
the same gradients from the same samples: the job does the work of one rank, at the price of all. It shows in their
losses, which are the same to the last digit, step after step, unless each rank drops at random by a seed of its own.

Judged where the samplers give ranks the same part of the data and their losses are the same, or where the models are
seen to be given the same values in a few steps, as with a data set that splits itself by loader workers and not by
ranks. A job whose ranks gather their outputs for a common loss has equal losses by intention, and is not judged; equal
losses alone say nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.replicas import ROLES, by_place, check_replicas
from probe_cli.diagnose.rule import Asked, Limits, Row, Rule, Threshold

__all__ = ["RULE"]

#: Values read, and different ones among them, from which equal checksums are of equal data.
MIN_READ, MIN_DISTINCT = 24, 8
#: Ranks with each of which all others are compared.
MOST_COMPARED = 8
SQL = f"""
SELECT roles.*,
    (SELECT list(loss) FROM (FROM python.steps WHERE isfinite(loss) ORDER BY step DESC LIMIT 100)) AS losses,
    (SELECT list({{'place': place, 'sampler': sampler, 'part': sampler_rank, 'parts': sampler_replicas}})
        FROM torch.dataloaders
        WHERE (sampler IN ('RandomSampler', 'SequentialSampler') OR sampler_replicas IS NOT NULL)
        AND (batches IS NULL OR batches > 0)) AS loaders,
    (SELECT count(*) FROM python.collectives WHERE step >= 0 AND op LIKE '%all_gather%'
        AND phase IN ('forward', 'other') AND coalesce(bytes, 1024) >= 1024) AS gathered,
    (SELECT list(given) FROM (
        -- Positions and other values that are the same in each call tell nothing, nor do a few numbers.
        SELECT concat(coalesce(module, 'batch'), ' ', name) AS name, list(checksum) AS sums
        FROM (SELECT *, count(*) OVER (PARTITION BY module, name, checksum) AS times FROM torch.arguments
            WHERE name <> 'output' AND read >= {MIN_READ} AND "distinct" >= {MIN_DISTINCT})
        WHERE times = 1 GROUP BY 1 HAVING count(*) >= 2) AS given) AS arguments
FROM ({ROLES}) AS roles
"""


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    if all(one.world_size < 2 for one in asked):
        raise NotApplicable("one rank")
    told = {one.rank: one.rows[0] for one in asked}
    if len(told) < 2:
        raise NoEvidence("fewer than two ranks were asked: ask all of them (--all)")
    if not all(row["loaders"] or row["arguments"] for row in told.values()):
        raise NotApplicable(
            "no loader is seen that could give ranks the same data, and no values of the model's inputs"
        )
    check_replicas(told)
    if any(row["gathered"] and row["dp"] is None for row in told.values()):
        raise NotApplicable("ranks gather what they compute: their losses may be common by intention")
    if any(len(_losses(row)) < limits["losses"] for row in told.values()):
        raise NoEvidence(f"a rank has recorded fewer than {limits['losses']:.0f} different losses: ask again later")
    for ranks in by_place(told):
        same = _equal(ranks, limits)
        seen = (_loader(ranks, same) or _arguments(ranks, same)) if len(same) > 1 else None
        if seen is None:
            same = _given_the_same(ranks)
            seen = _arguments(ranks, same) if same else None
        if seen is None:
            continue
        num_common = len(set.intersection(*(_losses(ranks[rank]) for rank in same)))
        where, evidence = seen
        losses = f"{num_common} losses are the same on these ranks, to the last digit"
        yield Finding(
            f"{len(same)} data-parallel ranks train on the same batches",
            Certainty.LIKELY,
            share=1 - 1 / len(same),
            ranks=same,
            where=where,
            evidence=(losses if num_common else "their losses differ: what is random in the model does", evidence),
            advice=(
                "give each rank its part of the data: DistributedSampler, and its set_epoch(epoch) in each epoch",
                "let a DistributedSampler find out num_replicas and rank itself, once the process group is there",
                "where the data set splits itself, seed it with the rank too",
            ),
            try_first="DataLoader(dataset, sampler=DistributedSampler(dataset), …)",
        )


def _loader(ranks: Mapping[int, Row], same: Sequence[int]) -> tuple[str, str] | None:
    """Return the loader that gives each of these ranks the same part of the data, and what is seen of it."""
    given = [{(loader["part"], loader["parts"]) for loader in ranks[rank]["loaders"] or ()} for rank in same]
    common = set[tuple[int | None, int | None]].intersection(*given)
    if not common:
        return None
    loader = next(one for one in ranks[same[0]]["loaders"] if (one["part"], one["parts"]) in common)
    part = "all of the data" if loader["parts"] in (None, 1) else f"part {loader['part']} of {loader['parts']}"
    return str(loader["place"]), f"{loader['place']} has a {loader['sampler']}, which gives each of them {part}"


def _arguments(ranks: Mapping[int, Row], same: Sequence[int]) -> tuple[str, str] | None:
    """Return an argument of a model that has the same values on these ranks, and how often; None where any has not.
    Ranks look at steps that begin a little later or earlier."""
    sums = [{given["name"]: {*given["sums"]} for given in ranks[rank]["arguments"] or ()} for rank in same]
    names = set.intersection(*(set(rank) for rank in sums))
    common = {name: set.intersection(*(rank[name] for rank in sums)) for name in names}
    if not common or not all(common.values()):
        return None
    name = max(common, key=lambda name: len(common[name]))
    what = " of ".join(reversed(name.split()))
    return what, f"the values of {what} that were read are the same in {len(common[name])} calls"


def _given_the_same(ranks: Mapping[int, Row]) -> tuple[int, ...]:
    """Return the most ranks whose models were given the same as that of one of the first; none where no model was."""
    found: tuple[int, ...] = ()
    for first in islice(ranks, MOST_COMPARED):
        alike = [rank for rank in ranks if rank == first or _arguments(ranks, (first, rank))]
        is_of_model = any(not one["name"].startswith("batch ") for one in ranks[first]["arguments"] or ())
        if is_of_model and len(alike) > max(1, len(found)):
            found = tuple(alike)
    return found


def _losses(row: Row) -> set[float]:
    return {loss for loss in row["losses"] or () if math.isfinite(loss)}


def _equal(ranks: dict[int, Row], limits: Limits) -> tuple[int, ...]:
    """The most ranks that share most of their losses with the first one of them."""
    losses = {rank: _losses(row) for rank, row in ranks.items()}
    alike: dict[int, list[int]] = {}
    firsts: dict[float, list[int]] = {}
    for rank, mine in losses.items():
        shared = Counter(first for loss in mine for first in firsts.get(loss, ()))
        first, num = max(shared.items(), key=lambda item: item[1], default=(rank, 0))
        if num and num >= limits["same"] * min(len(mine), len(losses[first])):
            alike[first].append(rank)
            continue
        alike[rank] = [rank]
        for loss in mine:
            firsts.setdefault(loss, []).append(rank)
    most = max(alike.values(), key=len)
    return tuple(most)


RULE = Rule(
    "same-batches-on-ranks",
    "numbers",
    "Does each data-parallel rank train on samples of its own?",
    SQL,
    judge,
    (
        Threshold("losses", 20, "different losses needed to judge"),
        Threshold("same", 0.5, "part of the losses of two ranks that is the same, for them to be taken as alike"),
    ),
    is_live=True,
)
