"""The output of a model is nearly the same for all samples of a batch.

Whatever it is given, it answers with the same: a variational model whose posterior has collapsed paints the mean image,
a generator one picture, an encoder without a contrast puts everything in one place. Dead units end in that, and labels
that belong to other samples. The loss may look well, as it falls to the deviation of the targets. Seen from the inputs
and outputs of a few calls: hardly any part of the outputs' deviation is between samples, and much of the inputs' is.
More may be where the output is to be like an input: what is drawn at random on the way adds to it. Outputs of a few
numbers are not judged, nor a job that has just begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT module, count(*) FILTER (name = 'output') AS calls, max(varies) FILTER (name = 'output') AS output,
    min(varies) FILTER (name <> 'output') AS given, max(shape) FILTER (name = 'output') AS shape,
    coalesce(bool_or(name <> 'output' AND shape = output_shape), false) AS is_of_its_shape,
    (SELECT count(*) FROM python.steps) AS steps
FROM (SELECT *, max(shape) FILTER (name = 'output') OVER (PARTITION BY module) AS output_shape FROM torch.arguments)
WHERE module IS NOT NULL AND varies IS NOT NULL GROUP BY module ORDER BY module
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    known = [row for row in rows if row["output"] is not None and row["given"] is not None]
    if not known:
        raise NotApplicable("no model was called with gradients whose inputs and outputs could be read")
    if known[0]["steps"] < limits["steps"] or max(row["calls"] for row in known) < limits["calls"]:
        raise NoEvidence(f"fewer than {limits['steps']:.0f} steps, or {limits['calls']:.0f} calls, are seen: ask again")
    for row in known:
        most = limits["alike_in_shape" if row["is_of_its_shape"] else "alike"]
        if row["calls"] >= limits["calls"] and row["output"] < most and row["given"] >= limits["given"]:
            yield Finding(
                f"{row['module']} gives nearly the same output for all samples of a batch",
                Certainty.LIKELY,
                share=1.0,
                where=f"output of {row['module']}",
                evidence=(
                    f"{percent(row['output'])} of the deviation of its output ({row['shape']}) is between samples,"
                    f" of its input {percent(row['given'])}, in {row['calls']} calls",
                ),
                advice=(
                    "look at the balance of the loss's terms: a KL that is summed beside an error that is averaged",
                    "see whether its units are dead, and its gradients 0: `probe PID grads`",
                    "see that each target belongs to its sample: a reshape that mixes the batch with the features",
                ),
                try_first="loss = reconstruction.sum() / len(batch) + beta * kl  # both summed, or both averaged",
            )
            return


RULE = Rule(
    "outputs-alike",
    "numbers",
    "Does the output of the model depend on the sample?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("alike", 0.02, "part of the output's deviation between samples, below which they are alike"),
        Threshold(
            "alike_in_shape", 0.12, "the same where an input has the output's shape: noise may be added on the way"
        ),
        Threshold("given", 0.2, "part of the inputs' deviation between samples, from which they are not"),
        Threshold("steps", 200, "steps needed to judge"),
        Threshold("calls", 4, "calls needed to judge"),
    ),
    explains=("loss-flat", "loss-at-chance"),
    is_live=True,
)
