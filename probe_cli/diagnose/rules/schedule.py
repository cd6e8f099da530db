"""The learning rate schedule is not stepped, or too often.

The calls of the scheduler's `step()` are held against the updates that its optimizer counts. As many as updates, or one
a pass over the data, is right. None at all leaves the learning rate where it began; more than updates means one call a
step and one an epoch, or one a micro-batch: the schedule ends long before the job does.

A schedule thousands of calls long that gets one for every twenty updates, or fewer, is meant to be stepped with each
batch and is stepped once an epoch: it stays where it began.

A cosine whose length is that of the epochs, and that is stepped with each batch, goes up and down again and again: it
begins anew after its end. ReduceLROnPlateau that is given an accuracy as if it were a loss cuts the learning rate until
nothing is left. A warm-up that does not end, as one whose milestone counts samples where the schedule counts steps,
raises it far above the one that the optimizer was given, while the loss gets no better.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Asked, Limits, Row, Rule, Threshold

__all__ = ["RULE"]

SQL = """
SELECT schedulers.*, (SELECT count(*) FILTER (skipped) FROM python.steps) AS skipped,
    (SELECT coalesce(sum(evaluation), 0) FROM python.steps) AS evaluation,
    (SELECT median(micro_batches) FROM (FROM python.steps ORDER BY step DESC LIMIT 100)) AS micro_batches,
    (SELECT {'early_lr': median(lr) FILTER (part = 1), 'late_lr': median(lr) FILTER (part = 5),
            'early': median(loss) FILTER (part = 1), 'late': median(loss) FILTER (part = 5), 'losses': count(*)}
        FROM (SELECT lr, loss, ntile(5) OVER (ORDER BY step) AS part FROM python.steps WHERE isfinite(loss))) AS course
FROM torch.schedulers AS schedulers
"""
#: Schedules that are made to be stepped with every update.
_PER_STEP = ("OneCycleLR", "CyclicLR")
#: Schedules that go back to where they began after their end.
_BACK_AND_FORTH = "CosineAnnealingLR"
#: Those that multiply the learning rate by what the job computes: by 1 at most, as is usual.
_BY_FACTOR = ("LambdaLR", "SequentialLR", "ChainedScheduler", "MultiplicativeLR")
#: The one that cuts the learning rate when what it is given gets no better.
_ON_PLATEAU = "ReduceLROnPlateau"


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    seen = False
    for one in asked:
        for row in one.rows:
            seen = True
            for way in (_never, _seldom, _too_often, _round, _cut, _beyond):
                for found in way({**row, "world_size": one.world_size}, limits):
                    yield replace(found, ranks=(one.rank,), where=str(row["scheduler"]))
    if not seen:
        raise NotApplicable("no learning rate scheduler of torch was found")


def _never(row: Row, limits: Limits) -> Iterable[Finding]:
    steps = row["steps_seen"] or 0
    if row["calls"] or steps < limits["steps"]:
        return
    # Batches of a validation are not those that a pass over the data is counted by.
    is_known = row["batches"] is not None and not row["evaluation"]
    has_passed_data = is_known and steps * (row["micro_batches"] or 1) > 1.2 * row["batches"] + 50
    per_step = str(row["scheduler"]).startswith(_PER_STEP) or (row["total"] or 0) >= limits["long"]
    if not (per_step or has_passed_data):
        return
    yield Finding(
        f"the schedule does not advance: {row['scheduler']}.step() was never called",
        certainty=Certainty.LIKELY,
        share=0.5,
        evidence=(
            f"no call in {max(steps, row['updates'] or 0):,} steps; learning rate {_number(row['lr'])}, base"
            f" {_number(row['base_lr'])}",
        ),
        advice=("call scheduler.step() after optimizer.step(), once a batch or once an epoch as it was planned",),
        try_first="optimizer.step(); scheduler.step()",
    )


def _seldom(row: Row, limits: Limits) -> Iterable[Finding]:
    calls, updates, total = row["calls"] or 0, row["updates"] or 0, row["total"] or 0
    if not calls or total < limits["long"] or updates < max(limits["steps"], limits["seldom"] * calls):
        return
    times = "once" if calls == 1 else f"{calls:,} times"
    yield Finding(
        f"the schedule hardly advances: {row['scheduler']} is {total:,.0f} steps long and was stepped {times} in"
        f" {updates:,} updates",
        certainty=Certainty.LIKELY,
        share=0.5,
        evidence=(
            f"at this pace it ends after {total * updates / calls:,.0f} updates",
            f"learning rate {_number(row['lr'])}, base {_number(row['base_lr'])}",
        ),
        advice=(
            "step it with each batch, for which it was made: scheduler.step() after optimizer.step()",
            'in Lightning: return {"scheduler": scheduler, "interval": "step"}; by default it is stepped once an epoch',
            "or give its length in what it is stepped with: the number of epochs",
        ),
        try_first="optimizer.step(); scheduler.step()",
    )


def _too_often(row: Row, limits: Limits) -> Iterable[Finding]:
    calls, updates = row["calls"] or 0, row["updates"]
    if not updates or updates < limits["updates"] or row["skipped"]:
        return
    more = calls - updates
    if more <= max(limits["more"], 0.005 * updates) or abs(calls - row["world_size"] * updates) <= max(5, 0.02 * calls):
        return
    ratio = calls / updates
    how = f"{ratio:.0f} times a step" if abs(ratio - round(ratio)) < 0.02 and ratio > 1.5 else "more often than that"
    yield Finding(
        f"the schedule runs ahead: {row['scheduler']} was stepped {calls:,} times for {updates:,} updates",
        certainty=Certainty.LIKELY,
        share=0.5,
        evidence=(
            f"one call an update is the most that is usual; here {how}",
            f"learning rate {_number(row['lr'])}, base {_number(row['base_lr'])}"
            + (f"; the schedule is {row['total']:,.0f} long" if row["total"] else ""),
        ),
        advice=(
            "call scheduler.step() in one place: with each update, or at the end of each epoch, not both",
            "with gradient accumulation only when the optimizer steps, not with each micro-batch",
            "after a resume: load the optimizer's state together with the scheduler's",
        ),
        try_first='probe PID query "FROM torch.schedulers"',
    )


def _cut(row: Row, limits: Limits) -> Iterable[Finding]:
    lr, base, calls = row["lr"], row["base_lr"], row["calls"] or 0
    if not str(row["scheduler"]).startswith(_ON_PLATEAU) or lr is None or not base or lr > limits["cut"] * base:
        return
    yield Finding(
        f"{row['scheduler']} has cut the learning rate to {_number(lr)}, from {_number(base)}: hardly anything is"
        " learned",
        certainty=Certainty.LIKELY,
        share=1.0,
        evidence=(f"stepped {calls:,} times in {max(row['steps_seen'] or 0, row['updates'] or 0):,} steps",),
        advice=(
            'look at what it is given: an accuracy or a reward needs mode="max", a loss mode="min"',
            "patience counts its calls: a call each few batches sees noise as a plateau",
            "give it a min_lr, and begin again from a checkpoint of before",
        ),
        try_first='ReduceLROnPlateau(optimizer, mode="max")',
    )


def _beyond(row: Row, limits: Limits) -> Iterable[Finding]:
    lr, base, course = row["lr"], row["base_lr"], row["course"]
    if not str(row["scheduler"]).startswith(_BY_FACTOR) or not lr or not base or lr < limits["beyond"] * base:
        return
    if course["losses"] < limits["steps"] or not course["early_lr"] or course["late_lr"] <= course["early_lr"]:
        return
    if course["late"] < course["early"]:
        return
    yield Finding(
        f"the learning rate rises on and on, to {_number(lr)}: {lr / base:.0f} times the {_number(base)} that the"
        " optimizer was given",
        certainty=Certainty.LIKELY,
        share=1.0,
        evidence=(
            f"{row['scheduler']} was stepped {row['calls'] or 0:,} times; median learning rate of the first fifth of"
            f" the recorded steps {_number(course['early_lr'])}, of the last {_number(course['late_lr'])}",
            f"the loss meanwhile: {course['early']:.4g}, then {course['late']:.4g}",
        ),
        advice=(
            "give the end of the warm-up in what the schedule is stepped with: steps, not samples or epochs",
            "let the factor of a warm-up end at 1: min(1, (step + 1) / warmup)",
        ),
        try_first="SequentialLR(optimizer, [warmup, decay], milestones=[warmup_epochs * len(loader)])",
    )


def _round(row: Row, limits: Limits) -> Iterable[Finding]:
    calls, updates, total = row["calls"] or 0, row["updates"], row["total"]
    if not str(row["scheduler"]).startswith(_BACK_AND_FORTH) or not total or total > limits["short"]:
        return
    # Stepped once an epoch, a job without an end may come to its end often, too.
    if not updates or calls < 0.9 * updates or calls < limits["rounds"] * total:
        return
    yield Finding(
        f"the learning rate goes up and down: {row['scheduler']} is {total:,.0f} steps long and was stepped"
        f" {calls:,} times",
        certainty=Certainty.LIKELY,
        share=0.5,
        evidence=(
            f"after its end the schedule goes back to where it began: {calls / total:,.0f} times so far",
            f"it was stepped once for each of {updates:,} updates; learning rate {_number(row['lr'])}, base"
            f" {_number(row['base_lr'])}",
        ),
        advice=(
            "give its length in what it is stepped with: T_max = epochs * len(loader) if that is each batch",
            "or step it at the end of each epoch",
            "if restarts are wanted: CosineAnnealingWarmRestarts says so",
        ),
        try_first="CosineAnnealingLR(optimizer, T_max=epochs * len(loader))",
    )


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


RULE = Rule(
    "schedule",
    "numbers",
    "Is the learning rate schedule stepped as often as it was made for?",
    SQL,
    judge,
    (
        Threshold("steps", 200, "steps without a call"),
        Threshold("updates", 50, "updates needed to judge"),
        Threshold("long", 2_000, "length of a schedule that is not meant in epochs"),
        Threshold("seldom", 20, "updates for each call of one so long"),
        Threshold("more", 3, "calls more than updates"),
        Threshold("beyond", 4.0, "learning rate over the one that the optimizer was given"),
        Threshold("cut", 1e-3, "part of the first learning rate that is too little"),
        Threshold("short", 200, "length of a cosine that is not meant in batches"),
        Threshold("rounds", 5, "times that it has come to its end"),
    ),
    explains=("learning-rate-zero", "loss-flat", "loss-at-chance", "loss-rises", "learning-rate-too-high"),
    is_live=True,
)
