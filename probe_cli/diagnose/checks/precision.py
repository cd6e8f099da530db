"""The types of the parameters, and whether a GPU's faster ones are in use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.check import Check, Level, Line
from probe_cli.diagnose.finding import NoEvidence
from probe_cli.diagnose.rule import Asked

__all__ = ["CHECK"]

SQL = """
SELECT module, dtype, device, autocast,
    (SELECT any_value(value) FROM process.env WHERE name = 'torch.get_float32_matmul_precision()') AS matmul
FROM torch.modules WHERE depth = 0 AND trainable > 0
"""


def read(asked: Sequence[Asked]) -> Iterable[Line]:
    rows = [(one.rank, row) for one in asked for row in one.rows]
    if not rows:
        raise NoEvidence("no model with trainable parameters was found")
    seen = set()
    for rank, row in rows:
        types = str(row["dtype"]).replace("torch.", "")
        on_gpu = "cuda" in str(row["device"])
        if types == "float32" and row["matmul"] == "highest" and on_gpu and row["autocast"] is None:
            yield Line(
                Level.WARN,
                f"{row['module']} multiplies in full float32 on a GPU, and no autocast was seen",
                'torch.autocast("cuda", dtype=torch.bfloat16), or torch.set_float32_matmul_precision("high") for TF32',
                (rank,),
            )
        under = f", {row['autocast']} under autocast" if row["autocast"] else ""
        seen.add(f"{row['module']}: {types}{under} on {row['device']}")
    yield Line(Level.OK, "; ".join(sorted(seen)[:4]))


CHECK = Check(
    "precision", "In which types does the model compute?", SQL, read, ("mixed-dtypes", "scaler-skips"), is_live=True
)
