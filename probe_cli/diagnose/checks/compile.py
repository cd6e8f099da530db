"""Whether the model is compiled, and whether that holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.check import Check, Level, Line
from probe_cli.diagnose.rule import Asked

__all__ = ["CHECK"]

SQL = """
SELECT count(*) FILTER (event <> 'graph break') AS compiled, count(DISTINCT function) AS functions,
    coalesce(sum(duration), 0) AS spent
FROM torch.compile
"""


def read(asked: Sequence[Asked]) -> Iterable[Line]:
    most = max((row for one in asked for row in one.rows), key=lambda row: row["compiled"], default=None)
    if most is None or not most["compiled"]:
        yield Line(Level.OK, "torch.compile has compiled nothing since the recorder came")
        return
    yield Line(Level.OK, f"compilations: {most['compiled']}, functions: {most['functions']}, {most['spent']:.1f} s")


CHECK = Check(
    "compile", "Is torch.compile in use, without recompiles and breaks?", SQL, read, ("recompiles", "graph-breaks")
)
