"""A language model generates without its KV cache: each new token computes the whole sequence again.

With the cache a call gets the prompt once and then one token at a time. Without it the input of each call is one token
longer than that of the one before, in the sampled steps that generate. `use_cache=False` is set for gradient
checkpointing, or in a config that the generation takes over. Judged are models whose class is named as those of
Transformers are (…ForCausalLM, …LMHeadModel), which have a cache: a loop of the job's own may have none by intention.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = r"""
WITH calls AS (SELECT step, module, seq, split_part(input_shapes, 'x', 2)::BIGINT AS length FROM python.torch_trace
    WHERE stage = 'forward' AND phase = 'generate' AND regexp_matches(input_shapes, '^\d+x\d+$')),
longer AS (SELECT module, length, length - lag(length) OVER (PARTITION BY step, module ORDER BY seq) AS by_so_many
    FROM calls),
modules AS (SELECT module, count(by_so_many) AS calls, count(*) FILTER (by_so_many = 1 AND length > 2) AS growing,
    sum(length) FILTER (by_so_many = 1) AS positions, max(length) AS longest FROM longer GROUP BY module)
SELECT times.*, most.*, (SELECT coalesce(bool_or(regexp_matches("class",
    '(ForCausalLM|LMHeadModel|ForConditionalGeneration)$')), false) FROM torch.modules) AS is_language_model
FROM (SELECT sum(generation) AS generation, sum(duration) AS duration
    FROM (FROM python.steps ORDER BY step DESC LIMIT 500)) AS times
LEFT JOIN (FROM modules ORDER BY growing DESC, calls DESC LIMIT 1) AS most ON true
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["generation"] or not row["is_language_model"]:
        raise NotApplicable("no language model of Transformers has generated between the steps")
    share = row["generation"] / row["duration"]
    if share < limits["share"]:
        return
    if row["calls"] is None:
        raise NoEvidence("no sampled step has generated: ask again later, or `probe PID config trace.every=5`")
    if row["growing"] < max(limits["tokens"], 0.5 * row["calls"]):
        return
    yield Finding(
        "each token that is generated computes the whole sequence again: there is no KV cache",
        Certainty.LIKELY,
        share=share,
        where=str(row["module"]),
        evidence=(
            f"generation takes {percent(share)} of the time",
            f"in the sampled steps {row['growing']:,} calls of {row['module']} got one token more than the one before,"
            f" up to {row['longest']:,}: {row['positions']:,} positions for {row['growing']:,} new tokens",
        ),
        advice=(
            "turn it on for generation: use_cache=True in generate(), its GenerationConfig, or model.config",
            "gradient checkpointing turns it off: leave it out while the model generates",
        ),
        try_first="model.generate(…, use_cache=True)",
    )


RULE = Rule(
    "generation-without-cache",
    "generation",
    "Does each new token compute the whole sequence again?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.2, "share of the time spent generating"),
        Threshold("tokens", 8, "calls that got one token more than the one before"),
    ),
    explains=("generation-dominates", "pauses"),
    is_live=True,
)
