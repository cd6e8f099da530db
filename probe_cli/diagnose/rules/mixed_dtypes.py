"""Parameters of one model have types that do not belong together.

float64 gets in by NumPy, whose numbers are double: the layer then raises "expected scalar type Float but found Double",
or turns all that comes after it to double, which a GPU computes many times slower. float16 beside bfloat16 is a
checkpoint or an adapter in the wrong type. float32 beside one of the halves is usual (norms, a master copy) and fine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT module, depth, dtype FROM torch.modules
WHERE depth = 0 OR (own_parameters > 0 AND (dtype LIKE '%float64%' OR dtype LIKE '%float16%'))
ORDER BY depth, module LIMIT 500
"""
HALVES = {"float16", "bfloat16"}


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NotApplicable("no model was found")
    for model in [row for row in rows if row["depth"] == 0]:
        types = {name for name in _types(model) if "float" in name}
        odd = "float64" if "float64" in types and types != {"float64"} else "float16" if types >= HALVES else None
        if odd is None:
            continue
        below = [row["module"] for row in rows if odd in _types(row) and row["module"].startswith(model["module"])]
        layers = [name for name in below if not any(other.startswith(f"{name}.") for other in below)]
        yield Finding(
            f"{model['module']} has parameters of {', '.join(sorted(types))}",
            Certainty.LIKELY,
            where=layers[0] if layers else model["module"],
            evidence=(f"{odd}: {', '.join(layers[:5])}{', …' if layers[5:] else ''}",),
            advice=(
                "give the whole model one type: model.float(), or model.to(torch.bfloat16)",
                "make tensors of NumPy's numbers with their type: torch.tensor(values, dtype=torch.float32)",
            ),
            try_first="model.float()",
        )


def _types(row: Row) -> set[str]:
    return {name.strip() for name in (row["dtype"] or "").split(",")}


RULE = Rule(
    "mixed-dtypes",
    "set-up",
    "Do the types of a model's parameters belong together?",
    SQL,
    of_each_rank(judge),
    is_live=True,
)
