"""An average of the weights, or a target that follows slowly, is kept in 16 bits: what is added to it is rounded away.

An average with a decay of 0.999 moves by a thousandth of its distance to the weights. bfloat16 has 8 bits for the
digits of a number, so a change of less than 1/512 of it is lost (float16: 1/4096), and the average stays near the
weights that it began with. Judged are copies of a trained model that no optimizer holds, that are changed with most
updates, and that have other values than the model: a copy of 16 bits that is made anew with each update has the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.diagnose.copies import SQL, copies, values_of
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.text import percent

__all__ = ["RULE"]

SMALL = ("bfloat16", "float16")


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    found = list(copies(rows))
    if not found:
        raise NotApplicable("no model is a copy of a trained one")
    for copy, trained in found:
        kind = _kind(copy)
        if kind is None:
            continue
        if trained["versions"] < limits["updates"]:
            raise NoEvidence(f"{trained['module']} was updated fewer than {limits['updates']:.0f} times: ask again")
        if copy["versions"] >= limits["changed"] * trained["versions"]:
            yield Finding(
                f"a copy of {trained['module']} that follows it is of {kind}, which rounds away what is added to it",
                Certainty.SUSPECTED,
                share=1.0,
                where=str(copy["place"]),
                evidence=(
                    f"{copy['module']} is of {copy['dtype']}, and was changed {copy['versions']:,} times in"
                    f" {trained['versions']:,} updates",
                ),
                advice=(
                    "keep the average in float32, and convert it where it is used",
                    "or average every N steps, with decay ** N: the changes are larger then",
                ),
                try_first="average = copy.deepcopy(model).float()",
            )
            return


def _kind(copy: Row) -> str | None:
    return next((one for one in SMALL if one in (copy["dtype"] or "")), None)


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    """See that the values of the copy are not those of the model."""
    told = []
    for one in found:
        rank = one.ranks[0]
        for copy, trained in copies(await job.rows(SQL, rank)):
            if _kind(copy) is None:  # not by its place, which is another one while it is updated
                continue
            norms = [
                {
                    (str(module)[len(root) :], name): float(str(norm))
                    for (module, name), (norm, _) in (await values_of(job, rank, root)).items()
                }
                for root in (copy["module"], trained["module"])
            ]
            apart = [abs(norm - norms[1][at]) / norms[1][at] for at, norm in norms[0].items() if norms[1].get(at)]
            if not apart:
                raise NoEvidence("the values of the average could not be read")
            if max(apart) > limits["apart"]:
                seen = f"the norm of one of its weights is {percent(max(apart))} from that of the model"
                told.append(replace(one, certainty=Certainty.LIKELY, evidence=(*one.evidence, seen)))
            break
    return told


RULE = Rule(
    "average-rounds-away",
    "numbers",
    "Can an average of the weights hold what is added to it?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("updates", 100, "updates of the trained model needed to judge"),
        Threshold("changed", 0.5, "changes of the copy for each update, from which it follows all the time"),
        Threshold("apart", 0.02, "how far a norm of the copy is from the model's, for it to be no plain copy"),
    ),
    is_live=True,
    look=look,
)
