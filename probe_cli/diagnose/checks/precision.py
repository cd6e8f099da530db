"""The types of the parameters, and whether a GPU's faster ones are in use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.check import Check, Level, Line
from probe_cli.diagnose.finding import NoEvidence
from probe_cli.diagnose.rule import Asked

__all__ = ["CHECK"]

SQL = """
SELECT module, dtype, device,
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
        if types == "float32" and row["matmul"] == "highest" and "cuda" in str(row["device"]):
            yield Line(
                Level.WARN,
                f"{row['module']} multiplies in full float32 on a GPU, unless it runs under autocast",
                'torch.autocast("cuda", dtype=torch.bfloat16), or torch.set_float32_matmul_precision("high") for TF32',
                (rank,),
            )
        seen.add(f"{row['module']}: {types} on {row['device']}")
    yield Line(Level.OK, "; ".join(sorted(seen)[:4]))


CHECK = Check(
    "precision", "In which types does the model compute?", SQL, read, ("mixed-dtypes", "scaler-skips"), is_live=True
)
