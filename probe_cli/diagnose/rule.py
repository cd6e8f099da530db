"""A rule: one question about a job, declared in a file of `rules/`. Plain data and functions over rows."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from .finding import Finding, NoEvidence, NotApplicable
from .job import Job

__all__ = [
    "ACTS", "ELEMENTS", "GOALS", "LATE", "ROLLOUTS", "Asked", "Limits", "Look", "Question", "Row", "Rule", "Threshold",
    "gradients_by_model", "is_late", "of_each_learner", "of_each_rank",
]  # fmt: skip

Row = Mapping[str, Any]
Limits = Mapping[str, float]

#: SQL: the number of elements of a module's first input, from a row of python.torch_trace.
ELEMENTS = """list_product(list_transform(string_split(split_part(input_shapes, ',', 1), 'x'),
    lambda size: try_cast(size AS DOUBLE)))"""

#: SQL: whether the model is called without gradients, often and with far smaller batches than it trains on: a policy
#: that acts in its environments between updates. In a function not named rollout… it counts as an evaluation.
ACTS = """(SELECT coalesce(4 * median(samples) FILTER (phase = 'eval') <= median(samples) FILTER (phase = 'train')
        AND count(*) FILTER (phase = 'eval') >= 16 * count(DISTINCT step) FILTER (phase = 'eval'), false)
    FROM (SELECT step, phase, try_cast(split_part(split_part(input_shapes, ',', 1), 'x', 1) AS DOUBLE) AS samples
        FROM python.torch_trace WHERE stage = 'forward' AND input_shapes <> '' AND NOT contains(module, '.')))"""

#: SQL: whether a model is called without gradients in each step: what it answers is what the other one is to learn, as
#: of the target network of DQN.
GOALS = """(SELECT count(DISTINCT step) FILTER (phase = 'eval') >= 0.9 * count(DISTINCT step) FILTER (phase = 'train')
        AND count(DISTINCT step) FILTER (phase = 'train') >= 10
    FROM python.torch_trace WHERE stage = 'forward' AND NOT contains(module, '.'))"""
#: SQL, of rows of python.steps: above 0 where the job learns from rollouts, recorded as such or known by ACTS; and on a
#: rank that calls a model and never trains, as an actor does for the rank that learns (for `of_each_learner`).
ROLLOUTS = f"greatest(max(rollout), {ACTS}::INTEGER, (count(*) >= 50 AND count(*) FILTER (backward > 0) = 0)::INTEGER)"


@dataclass(frozen=True)
class Asked:
    """One target and its rows for a rule."""

    rank: int
    host: str
    pid: int
    world_size: int
    rows: Sequence[Row]

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})"


class Question(Protocol):
    """A statement that is put to every target: that of a rule, or of a check."""

    @property
    def name(self) -> str: ...
    @property
    def sql(self) -> str: ...
    @property
    def per_host(self) -> bool: ...
    @property
    def is_live(self) -> bool: ...


Judge = Callable[[Sequence[Asked], Limits], Iterable[Finding]]
#: A second look at a job of which the rows tell that it is worth one: what it finds takes the place of what they told.
Look = Callable[[Job, Sequence[Finding], Limits], Awaitable[Iterable[Finding]]]


@dataclass(frozen=True)
class Threshold:
    """A number that a user may set: `--set RULE.NAME=VALUE`."""

    name: str
    default: float
    meaning: str


#: For `is_late`.
LATE = Threshold("late", 30, "first recorded step from which it is not known how high the loss was at first")


def is_late(row: Row, limits: Limits) -> bool:
    """Whether the job may have trained for long before its losses were recorded: the `first` recorded step is a later
    one, or steps are numbered from the attach (`counted` is false)."""
    return bool(row["first"] >= limits[LATE.name] or row["counted"] is False)


def gradients_by_model(rows: Sequence[Row], limits: Limits) -> list[list[Row]]:
    """Rows of torch.gradients, with the number of steps as `steps`, of each model. Raises NotApplicable where none was
    read, NoEvidence where the job has just begun."""
    if not rows:
        raise NotApplicable("no gradient could be read: no step has ended meanwhile, or no model was found")
    if rows[0]["steps"] < limits["steps"]:
        raise NoEvidence("the job has just begun: ask again later")
    models: dict[str, list[Row]] = {}
    for row in rows:
        models.setdefault(str(row["module"]).partition(".")[0], []).append(row)
    return list(models.values())


@dataclass(frozen=True)
class Rule:
    """`sql` is put to each target by itself; `judge` gets the rows of all. It raises NoEvidence where the rows cannot
    tell, and NotApplicable where there is nothing to judge."""

    name: str
    family: str
    #: What it asks, as one line of `--list`.
    question: str
    sql: str
    judge: Judge
    thresholds: tuple[Threshold, ...] = ()
    #: Rules whose findings this one's explain: they are shown below it.
    explains: tuple[str, ...] = ()
    #: Its rows are the host's: one target of each host is asked.
    per_host: bool = False
    #: It names a live table: the recorder has to answer, which a target that hangs may not.
    is_live: bool = False
    #: It tells what the training thread does, which costs nothing while the rank's GPU works (gpu_load.py).
    on_host: bool = False
    #: Asked when `judge` found or suspects something, and the job can be asked more.
    look: Look | None = None
    #: It explains no finding that costs more than so many times what its own does.
    explains_times: float = math.inf

    def limits(self, overrides: Limits) -> Limits:
        """The thresholds in force."""
        return {one.name: overrides.get(f"{self.name}.{one.name}", one.default) for one in self.thresholds}


def of_each_rank(judge_one: Callable[[Sequence[Row], Limits], Iterable[Finding]]) -> Judge:
    """A judge of all ranks, made from one that looks at the rows of a single rank. A rank that cannot tell or has
    nothing to judge stands back behind those that can."""

    def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
        findings: list[Finding] = []
        silent: list[Exception] = []
        for one in asked:
            try:
                findings += [replace(found, ranks=(one.rank,)) for found in judge_one(one.rows, limits)]
            except (NoEvidence, NotApplicable) as reason:
                silent.append(reason)
        if silent and len(silent) == len(asked):
            raise silent[0]
        return findings

    return judge


def of_each_learner(judge_one: Callable[[Sequence[Row], Limits], Iterable[Finding]]) -> Judge:
    """The same for rules whose only row has ROLLOUTS as `rollouts`: those of one rank are the whole job's, in which
    ranks may act for others."""

    def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
        most = max((row["rollouts"] or 0 for one in asked for row in one.rows), default=0)
        with_them = [replace(one, rows=[{**row, "rollouts": most} for row in one.rows]) for one in asked]
        return of_each_rank(judge_one)(with_them, limits)

    return judge
