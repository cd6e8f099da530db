"""Gradients explode or vanish.

The 2-norm of all gradients is recorded on sampled steps. A norm that grows a hundredfold within the run, or falls
below what the weights can feel, shows before the loss does. Where nothing is left of the loss, nothing is left of
the gradients either; and at the bottom of a valley they are small, but hardly exactly 0. `probe … grads` has it by
layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

__all__ = ["RULE"]

SQL = """
WITH norms AS (SELECT step, grad_norm, loss, lr FROM python.steps WHERE grad_norm IS NOT NULL ORDER BY step DESC
    LIMIT 200),
losses AS (SELECT step, loss FROM python.steps WHERE isfinite(loss))
SELECT count(*) AS norms, median(grad_norm) AS usual, max(grad_norm) AS highest, arg_max(step, grad_norm) AS at,
    arg_max(grad_norm, step) AS newest,
    (SELECT median(grad_norm) FROM (FROM norms ORDER BY step DESC LIMIT 5)) AS recent,
    (SELECT max(grad_norm) FROM (FROM norms ORDER BY step DESC LIMIT 5)) AS recent_highest,
    (SELECT median(grad_norm) FROM (FROM norms ORDER BY step LIMIT 5)) AS early,
    (SELECT max(step) FROM python.steps WHERE grad_norm > 0) AS last_above_0,
    (SELECT max(rollout) FROM python.steps) AS rollouts,
    (SELECT median(loss) FROM (FROM losses ORDER BY step DESC LIMIT 20)) AS loss,
    (SELECT median(loss) FROM (FROM losses ORDER BY step LIMIT 20)) AS first_loss,
    min(step) FILTER (grad_norm > 100 * (SELECT median(grad_norm) FROM norms)) AS since, max(step) AS last
FROM norms WHERE isfinite(grad_norm)
"""


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if row["norms"] < limits["norms"]:
        raise NotApplicable(f"{row['norms']} gradient norms recorded; more: `probe PID config trace.deep_every=1`")
    numbers = (
        f"norm of all gradients: {row['early']:.3g} at first, {row['recent']:.3g} in the newest, at most"
        f" {row['highest']:.3g} at step {row['at']}; {row['norms']} norms"
    )
    if row["recent"] > limits["explodes"] * row["early"] and row["recent"] > 10:
        yield Finding(
            f"gradients explode: their norm grew from {row['early']:.3g} to {row['recent']:.3g}",
            Certainty.LIKELY,
            where="explode",
            since_step=row["since"],
            evidence=(numbers,),
            advice=(
                "clip them: torch.nn.utils.clip_grad_norm_(parameters, 1.0) between backward and the optimizer",
                "lower the learning rate, lengthen the warm-up",
                "see which layer begins: `probe PID grads`",
            ),
            try_first="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
        )
    elif not _is_learned(row, limits) and row["recent_highest"] == 0 and not row["rollouts"]:
        yield Finding(
            "all gradients are exactly 0",
            Certainty.LIKELY,
            where="vanish",
            since_step=row["last_above_0"],
            evidence=(numbers,),
            advice=(
                "two factors of a product that both begin at 0, as A and B of LoRA: begin one with random numbers",
                "a loss that does not depend on what is trained: a detach, a wrong output, dead activations",
                "see which layers get none: `probe PID grads`",
            ),
            try_first="probe PID grads",
        )
    elif max(row["recent"], row["early"] / 100) < limits["vanishes"] and not _is_learned(row, limits):
        yield Finding(
            f"gradients vanish: their norm is {row['recent']:.3g}",
            Certainty.LIKELY,
            where="vanish",
            evidence=(numbers,),
            advice=(
                "see from which layer on: `probe PID grads`",
                "saturated activations (sigmoid, tanh), a missing residual or normalisation, a detached loss",
            ),
            try_first="probe PID grads",
        )


def _is_learned(row: Row, limits: Limits) -> bool:
    """Return whether the loss is nearly zero, so that the gradients may be, too."""
    return row["loss"] is not None and 0 <= row["loss"] <= limits["learned"] * row["first_loss"]


RULE = Rule(
    "gradients",
    "numbers",
    "Do gradients explode or vanish?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("explodes", 100, "growth of the norm that counts as exploding"),
        Threshold("vanishes", 1e-8, "norm that counts as vanished"),
        Threshold("learned", 0.005, "share that is left of the first loss where gradients may vanish"),
        Threshold("norms", 6, "norms needed to judge"),
    ),
    explains=("loss-rises", "loss-not-finite"),
)
