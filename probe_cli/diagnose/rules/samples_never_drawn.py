"""A sampler has fewer weights than there are samples, and never draws the others.

WeightedRandomSampler takes a weight for each sample. Given one for each class, it draws the first few samples again and
again, as many as there are classes: the loss falls to zero, and the model has learned these by heart. Its draws tell
it: they are a pass over the data, many times as many as its weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT place, samples, sampler, sampler_weights, sampler_draws FROM torch.dataloaders WHERE sampler_weights > 0
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no loader has a sampler that draws by weights")
    for row in rows:
        weights, draws = row["sampler_weights"], row["sampler_draws"]
        is_known = row["samples"] is not None and weights < row["samples"]
        if is_known or (row["samples"] is None and draws >= limits["draws"] * weights):
            yield Finding(
                f"the sampler has {weights:,} weights, and draws no sample after the first {weights:,}",
                Certainty.LIKELY if is_known else Certainty.POSSIBLE,
                share=1 - weights / (row["samples"] if is_known else draws),
                where=str(row["place"]),
                evidence=(
                    f"{row['sampler']} draws {draws:,} samples a pass"
                    + (f" of {row['samples']:,}" if is_known else ""),
                ),
                advice=(
                    "give it a weight for each sample, not for each class: weights[labels], in the order of the data",
                    "if the data are so few, and a pass is meant to repeat them, nothing is wrong",
                ),
                try_first="WeightedRandomSampler(weights[labels], num_samples=len(labels))",
            )


RULE = Rule(
    "samples-never-drawn",
    "numbers",
    "Has a weighted sampler a weight for each sample?",
    SQL,
    of_each_rank(judge),
    (Threshold("draws", 10, "draws of a pass for each weight, where it is not known how many samples there are"),),
    is_live=True,
)
