"""What `top` asks of the ranks: a look every few seconds, findings now and then, and more about one rank.

Each method runs on a thread of the screen and blocks it. What a rank has recorded is read from its rings; only its
current line and its stack are asked of the recorder, which looks at the frames of one thread.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from probe_agent.wire import Backtrace, TargetInfo
from probe_cli.client import Client
from probe_cli.client.loop import run
from probe_cli.cluster.fanout import Answers, ask
from probe_cli.cluster.ranks.listing import Rank
from probe_cli.cluster.stacks import ask_stacks
from probe_cli.diagnose import Diagnosis, Evidence, diagnose, question_of, rules
from probe_cli.endpoint import Endpoint
from probe_cli.session import Session

__all__ = ["NUM_STEPS", "PHASES", "Detail", "Look", "RankLook", "Watcher"]

T = TypeVar("T")

#: Steps that a look covers.
NUM_STEPS = 60
#: In the order of a step.
PHASES = ("data_wait", "forward", "backward", "optimizer", "evaluation", "generation", "other")
#: The ranks of the job are looked for anew so often.
LIST_EVERY_S = 15.0
#: How long a rank may take to tell its line.
LINE_S = 1.0
RECENT = f"(FROM python.steps ORDER BY step DESC LIMIT {NUM_STEPS})"
STATEMENTS = {
    "top.steps": f"""
SELECT max(step) AS step, epoch(now()::TIMESTAMPTZ) - epoch(max(ts)) AS age, median(duration) AS usual,
    sum(duration) AS lasted, list(duration ORDER BY step) AS durations, arg_max(loss, step) AS loss,
    arg_max(rss, step) AS rss, arg_max(allocated, step) AS allocated, arg_max(reserved, step) AS reserved,
    {", ".join(f"sum(coalesce({name}, 0)) AS {name}" for name in PHASES)}
FROM {RECENT}""",
    "top.waits": f"SELECT sum(wait) AS waited FROM python.collectives WHERE step IN (SELECT step FROM {RECENT})",
    "top.gpu": """
SELECT avg(utilization) AS utilization FROM (SELECT utilization, ts, max(ts) OVER () AS newest FROM gpu.samples
WHERE pid IS NOT NULL) WHERE ts > newest - INTERVAL 3 SECONDS""",
}
#: The job's innermost line: code that is installed is left out, if there is other code.
LINE = {
    "top.line": """
SELECT func, file, lineno FROM python.backtrace WHERE frame_type = 'python'
ORDER BY file LIKE '%/site-packages/%' OR file LIKE '%/lib/python3%' OR file LIKE '<%', depth LIMIT 1"""
}
MODULES = {
    "top.modules": """
WITH sampled AS (SELECT DISTINCT step FROM python.torch_trace ORDER BY step DESC LIMIT 10)
SELECT module, stage, sum(self_duration) / (SELECT count(*) FROM sampled) AS own, count(*) AS calls
FROM python.torch_trace WHERE step IN (FROM sampled) GROUP BY ALL ORDER BY own DESC LIMIT 12"""
}


@dataclass(frozen=True)
class RankLook:
    """One rank at one moment; what it has not told is None. `problem` says why it has told nothing."""

    info: TargetInfo
    steps: Mapping[str, Any] = field(default_factory=dict)
    waited: float | None = None
    gpu: float | None = None
    line: tuple[str, str, int] | None = None
    problem: str = ""

    @property
    def key(self) -> str:
        return f"{self.info.host}/{self.info.pid}"

    @property
    def step(self) -> int | None:
        return self.steps.get("step")

    @property
    def usual(self) -> float | None:
        return self.steps.get("usual")

    @property
    def age(self) -> float | None:
        return self.steps.get("age")

    @property
    def durations(self) -> Sequence[float]:
        return self.steps.get("durations") or ()

    @property
    def memory(self) -> float | None:
        """MiB: what torch's allocator holds on the device, or the resident memory."""
        reserved: float | None = self.steps.get("reserved")
        return self.steps.get("rss") if reserved is None else reserved

    @property
    def shares(self) -> dict[str, float]:
        """Parts of the steps' time by phase, from 0 to 1; empty without steps."""
        lasted = self.steps.get("lasted")
        return {name: (self.steps.get(name) or 0.0) / lasted for name in PHASES} if lasted else {}


@dataclass(frozen=True)
class Look:
    """All ranks at one moment, and those of the job that could not be found, each with the reason."""

    ranks: tuple[RankLook, ...]
    missing: tuple[str, ...]
    exit_code: int


@dataclass(frozen=True)
class Detail:
    """More about one rank."""

    modules: Sequence[Mapping[str, Any]]
    stack: Backtrace | None
    problem: str = ""


class Watcher:
    """Asks the ranks behind the endpoints of one run of `probe`."""

    def __init__(self, session: Session, timeout_s: float) -> None:
        self._first = session
        self._timeout_s = timeout_s
        self._found: Answers[Rank] | None = None
        self._listed_at = 0.0
        self._without_line: set[Endpoint] = set()

    def look(self) -> Look:
        """Look at all ranks; raises ProbeError if there is none to look at."""
        found = self._ranks()
        endpoints = [endpoint for endpoint, _ in found.answered]
        targets = {endpoint: one.info for endpoint, one in found.answered}
        answers = self._ask(endpoints, question_of((), self._timeout_s, STATEMENTS, targets), self._wait_s)
        told = dict(answers.answered)
        # A rank that hangs may not tell its line: it is asked again when the ranks are listed the next time.
        asked = [endpoint for endpoint in endpoints if endpoint in told and endpoint not in self._without_line]
        lines = dict(self._ask(asked, question_of((), LINE_S, LINE), LINE_S).answered)
        self._without_line.update(at for at in asked if at not in lines or not _only(lines[at], "top.line"))
        problems = {endpoint: error.message for endpoint, error in answers.unanswered}
        looks = tuple(
            _look(one.info, told.get(endpoint), lines.get(endpoint), problems.get(endpoint, ""))
            for endpoint, one in found.answered
        )
        missing = tuple(f"{who}: {error.message}" for who, error in found.unanswered)
        return Look(looks, missing, Answers(answers.answered, found.unanswered + answers.unanswered).exit_code)

    def findings(self) -> Diagnosis:
        """What `diagnose` says."""
        found = self._ranks()
        every = list(rules().values())
        endpoints = [endpoint for endpoint, _ in found.answered]
        targets = {endpoint: one.info for endpoint, one in found.answered}
        answers = self._ask(endpoints, question_of(every, self._timeout_s, targets=targets), 3 * self._timeout_s)
        told = [(targets[endpoint], evidence) for endpoint, evidence in answers.answered]
        return diagnose(every, told, {})

    def detail(self, key: str) -> Detail:
        """More about the rank that has this key."""
        endpoint = next((at for at, one in self._ranks().answered if f"{one.info.host}/{one.info.pid}" == key), None)
        if endpoint is None:
            return Detail((), None, "it is not found any more")
        modules = self._ask([endpoint], question_of((), self._timeout_s, MODULES), self._wait_s)
        stacks = self._ask([endpoint], partial(ask_stacks, all_threads=False), self._wait_s)
        rows = [row for _, evidence in modules.answered for row in evidence.rows.get("top.modules", ())]
        problem = next((error.message for _, error in stacks.unanswered), "")
        return Detail(rows, next((taken for _, taken in stacks.answered), None), problem)

    @property
    def _wait_s(self) -> float:
        return 2 * self._timeout_s

    def _ranks(self) -> Answers[Rank]:
        now = time.monotonic()
        if self._found is None or now - self._listed_at > LIST_EVERY_S:
            # The first one attaches, and replaces launchers by what they have started.
            first = self._first
            session = (
                first
                if self._found is None
                else Session(first.named, inject=False, everyone=first.everyone, ranks=first.ranks)
            )
            self._found, self._listed_at = session.list_ranks(), now
            self._without_line.clear()
        return self._found

    def _ask(
        self, endpoints: Sequence[Endpoint], question: Callable[[Client], Awaitable[T]], timeout_s: float
    ) -> Answers[T]:
        """Ask without a word on stderr: who does not answer is seen in its row."""
        asking = ask(
            endpoints,
            question,
            timeout_s=timeout_s,
            inject=False,
            remark=lambda text: None,
            needs_agent=False,
            doing="",
        )
        return run(asking)


def _look(info: TargetInfo, told: Evidence | None, line: Evidence | None, problem: str) -> RankLook:
    if told is None:
        return RankLook(info, problem=problem or "no answer")
    steps = _only(told, "top.steps")
    frame = _only(line, "top.line") if line is not None else {}
    return RankLook(
        info,
        steps if steps.get("step") is not None else {},
        _only(told, "top.waits").get("waited"),
        _only(told, "top.gpu").get("utilization"),
        (str(frame["func"]), str(frame["file"]), int(frame["lineno"])) if frame else None,
    )


def _only(evidence: Evidence, name: str) -> Mapping[str, Any]:
    rows = evidence.rows.get(name, ())
    return rows[0] if rows else {}
