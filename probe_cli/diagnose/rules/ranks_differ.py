"""Ranks run with different versions, settings or code.

Ranks of one job are to be equal in all that is compared here, but for what names them. A rank with another torch,
another NCCL, another file of the training's own code computes something else, or waits for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Asked, Limits, Rule

__all__ = ["RULE"]

SQL = "SELECT kind, name, value FROM process.env WHERE kind IN ('version', 'setting', 'code')"
#: Settings that may differ between hosts without harm.
MAY_DIFFER = frozenset({"cpus the main thread may use"})


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    if all(one.world_size < 2 for one in asked):
        raise NotApplicable("one rank")
    told = {one.rank: {(row["kind"], row["name"]): row["value"] for row in one.rows} for one in asked if one.rows}
    if len(told) < 2:
        raise NoEvidence("fewer than two ranks have answered")
    for key in sorted({key for values in told.values() for key in values}):
        kind, name = key
        values = Counter(values[key] for values in told.values() if key in values)
        if len(values) < 2 or name in MAY_DIFFER:
            continue
        usual, _ = values.most_common(1)[0]
        odd = tuple(sorted(rank for rank, of_rank in told.items() if key in of_rank and of_rank[key] != usual))
        yield Finding(
            f"ranks differ in {name}" if kind != "code" else f"ranks run different code in {name}",
            Certainty.CERTAIN,
            share=0.0 if kind == "setting" else None,
            ranks=odd,
            where=name,
            evidence=(f"{usual!r} on {values[usual]} ranks; {told[odd[0]][key]!r} on rank {odd[0]}",),
            advice=(
                "start all ranks from the same image and the same checkout",
                "compare all that is known: `probe -t PID --all compare --by env`",
            ),
            try_first="probe -t PID --all compare --by env",
        )


RULE = Rule(
    "ranks-differ", "set-up", "Do all ranks run with the same versions, settings and code?", SQL, judge, is_live=True
)
