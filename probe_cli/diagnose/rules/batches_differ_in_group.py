"""Ranks that share the layers of one model read different batches.

In tensor parallelism each rank of a group has a part of each layer, and they add up their parts of its output: they
have to be given the same samples. A DistributedSampler that is left to itself cuts the data by all ranks, and so does
one that is told the rank in the job: the sums are then of different sequences, without an error, and the model trains
on what is in no data set. Told by what samplers give the ranks of a group that adds up activations in forward, while
another group averages the gradients.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Asked, Limits, Rule, Threshold

__all__ = ["RULE"]

SQL = """
WITH sums AS (SELECT step, "group", phase, coalesce(bytes, 1024) AS bytes FROM python.collectives
    WHERE step >= 0 AND op LIKE '%all_reduce%'),
added AS (SELECT "group", count(DISTINCT step) AS steps FROM sums WHERE phase = 'forward' AND bytes >= 1024
    GROUP BY "group"),
averaged AS (SELECT DISTINCT "group" FROM sums WHERE phase IN ('backward', 'other', 'optimizer') AND bytes > 64)
SELECT (SELECT list({'group': "group", 'ranks': ranks, 'steps': steps}) FROM added JOIN
        (SELECT "group", any_value(ranks) AS ranks FROM python.groups WHERE size BETWEEN 2 AND world_size - 1
            GROUP BY "group") USING ("group")
        WHERE EXISTS (FROM averaged WHERE averaged."group" != added."group")) AS groups,
    (SELECT list({'place': place, 'part': sampler_rank, 'parts': sampler_replicas}) FROM torch.dataloaders
        WHERE sampler_replicas IS NOT NULL AND (batches IS NULL OR batches > 0)) AS loaders
"""


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    if all(one.world_size < 2 for one in asked):
        raise NotApplicable("one rank")
    told = {one.rank: one.rows[0] for one in asked if one.rows}
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, row in told.items():
        for group in row["groups"] or ():
            if group["steps"] >= limits["steps"]:
                members[group["group"], group["ranks"]].append(rank)
    if not members:
        raise NotApplicable("no group of some ranks adds up activations in forward while another averages gradients")
    if all(len(ranks) < 2 for ranks in members.values()):
        raise NoEvidence("fewer than two ranks of a group were asked: ask all of them (--all)")
    for (_, ranks_text), ranks in sorted(members.items()):
        parts: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        for rank in ranks:
            for loader in told[rank]["loaders"] or ():
                parts[loader["place"]][rank] = (loader["part"], loader["parts"])
        for place, of_ranks in parts.items():
            if len(of_ranks) < 2 or len(set(of_ranks.values())) < 2:
                continue
            given = (f"rank {rank} part {part} of {num}" for rank, (part, num) in sorted(of_ranks.items())[:4])
            yield Finding(
                f"ranks {ranks_text} have parts of the same layers and read different batches",
                Certainty.LIKELY,
                share=1.0,
                ranks=tuple(sorted(of_ranks)),
                where=place,
                evidence=(
                    f"they add up activations in forward; {place} gives {', '.join(given)}",
                    "their outputs are sums over different samples",
                ),
                advice=(
                    "cut the data by the rank in data parallelism: num_replicas and rank of the groups that average"
                    " gradients, not of the job",
                    "see that both ranks print the same batch, then begin anew: the weights have learned from sums",
                ),
                try_first="DistributedSampler(dataset, num_replicas=dp_size, rank=dp_rank)",
            )
            return


RULE = Rule(
    "batches-differ-in-group",
    "numbers",
    "Do ranks that share the layers of one model read the same batches?",
    SQL,
    judge,
    (Threshold("steps", 10, "steps in which a group adds up activations, needed to judge"),),
    explains=("loss-flat", "loss-rises", "replicas-differ", "loss-at-chance"),
    is_live=True,
)
