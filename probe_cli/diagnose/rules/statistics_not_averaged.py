"""An average of the weights lacks the statistics of batch norm.

An average (EMA, SWA) is made of the parameters, and batch norm's running mean and variance are buffers: those of the
average stay as they were when it was made, 0 and 1 or an early guess, and what it evaluates is near chance while the
model itself trains well. Named is a copy of a trained model that follows it, by its name or by how often its parameters
were changed, and whose statistics were hardly ever updated, as torch counts that. Of torch's `AveragedModel` that is so
until `update_bn`, which belongs before its evaluation: it is judged once it was evaluated. A copy that runs in training
mode keeps statistics of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.copies import SQL as COPIES
from probe_cli.diagnose.copies import as_large
from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = f"""
SELECT models.*, statistics.*, coalesce(evaluated, 0) AS evaluated
FROM ({COPIES}) AS models
JOIN (
    SELECT split_part(module, '.', 1) AS module, count(*) AS layers, max(statistics_versions) AS most_changed,
        min(statistics_versions) AS least_changed
    FROM torch.modules WHERE statistics_versions IS NOT NULL GROUP BY 1
) AS statistics USING (module)
LEFT JOIN (SELECT module AS class, max(without_gradients) AS evaluated FROM torch.evaluations GROUP BY 1)
    USING (class)
"""
#: In the way to the copy: "attribute `module` of local `ema` of main()".
FOLLOWS = re.compile(r"`\w*?(target|(?<![a-z])ema(?![a-z])|slow|shadow|momentum|averag|swa)\w*`", re.I)
OF_TORCH = "AveragedModel"


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    found = [pair for pair in as_large(rows) if _follows(pair[0], limits)]
    if not found:
        raise NotApplicable("no model with batch norm follows a trained one and is evaluated")
    for copy, trained in found:
        if copy["most_changed"] <= limits["made"] and trained["least_changed"] >= limits["updates"]:
            yield Finding(
                f"a copy of {trained['module']} gets its weights, and not the running statistics of batch norm",
                Certainty.LIKELY,
                share=1.0,
                where=str(copy["place"]),
                evidence=(
                    f"the statistics of the copy's {copy['layers']} layers were updated {copy['most_changed']} times at"
                    f" most, those of {trained['module']} {trained['least_changed']:,} times at least",
                ),
                advice=(
                    "copy the buffers with each update: for own, other in zip(ema.buffers(), model.buffers())",
                    "with torch's AveragedModel: use_buffers=True, or update_bn(loader, model) before an evaluation",
                ),
                try_first="for own, other in zip(ema.buffers(), model.buffers()): own.copy_(other)",
            )
            return


def _follows(copy: Row, limits: Limits) -> bool:
    if copy["class"] == OF_TORCH:
        return bool(copy["evaluated"])
    return (copy["versions"] or 0) >= limits["follows"] or FOLLOWS.search(copy["place"] or "") is not None


RULE = Rule(
    "statistics-not-averaged",
    "numbers",
    "Does an average of the weights get the statistics of batch norm?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("made", 3, "updates of the copy's statistics that its making takes: copied, loaded"),
        Threshold("updates", 100, "updates of the trained model's statistics that it should have got"),
        Threshold("follows", 20, "changes of its parameters from which a copy is said to follow the model"),
    ),
    is_live=True,
)
