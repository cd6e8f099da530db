"""A module gets another hook in each step, and none is removed.

`register_forward_hook` in a function that is called in each step leaves its hook behind: each call of the module then
calls all of them, so steps take longer and longer, and what they keep stays. Judged are the hooks of modules and of
their parameters: those of which there were more at the end of a look of 0.4 s, and those that are one function put
there many times, as by a function that is called in each epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT place, items, added, period, steps, "class" = 'hooks of one function' AS alike FROM python.containers
WHERE "class" LIKE 'hooks%'
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    growing = [row for row in rows if row["added"] > 0 and row["items"] >= limits["hooks"]]
    alike = [row for row in rows if row["alike"] and row["items"] >= limits["alike"]]
    if growing:
        yield _finding(
            growing,
            "hooks are added in each step and none is removed: {items:,} so far in {place}",
            "{added} hooks more in {period:g} s ({steps} steps), {items:,} in all: {place}",
        )
    elif alike:
        yield _finding(
            alike,
            "one function is a hook {items:,} times in {place}",
            "{items:,} hooks that run the same code: {place}",
        )


def _finding(rows: Sequence[Row], sentence: str, seen: str) -> Finding:
    worst = max(rows, key=lambda row: row["items"])
    more = f", and {len(rows) - 1} more such" if rows[1:] else ""
    return Finding(
        sentence.format_map(worst) + more,
        Certainty.LIKELY,
        share=0.5,
        where=worst["place"],
        evidence=tuple(seen.format_map(row) for row in sorted(rows, key=lambda row: -row["items"])[:4]),
        advice=(
            "register the hook once, where the model is made",
            "remove it after use: handle = module.register_forward_hook(f); …; handle.remove()",
            "return what the hook takes out of the forward from the forward itself",
        ),
        try_first="handle.remove()",
    )


RULE = Rule(
    "hooks-pile-up",
    "speed",
    "Does the job remove the hooks that it adds?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("hooks", 16, "hooks in one place that become more"),
        Threshold("alike", 8, "hooks in one place that are one function"),
    ),
    explains=("slower-than-best", "memory-grows", "container-grows", "graphs-kept", "python-bound", "values-read-back"),
    is_live=True,
)
