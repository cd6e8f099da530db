"""A job that is asked from Python: the same questions as the commands put, over the same roads.

Every question looks for the ranks anew, so a job may be asked for days. What is not an answer raises ProbeError, of
which a notebook shows the message and the hint.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from probe_agent.errors import ProbeError
from probe_agent.wire import Backtrace, EvalRequest, QueryRequest
from probe_cli.cluster.fanout import Answers
from probe_cli.cluster.query import Limits
from probe_cli.cluster.ranks.discover import endpoints_of, split
from probe_cli.cluster.stacks import ask_stacks
from probe_cli.diagnose import diagnose, question_of, rules
from probe_cli.diagnose.job import Job as Diagnosed
from probe_cli.endpoint import Endpoint, LocalProcess
from probe_cli.repl.evaluate import evaluate
from probe_cli.session import Session

from .answer import Answer
from .views import Findings, Output, Stacks

__all__ = ["Job", "connect"]

T = TypeVar("T")


def connect(*endpoints: str | int, all_ranks: bool = False, ranks: Collection[int] = (), attach: bool = True) -> Job:
    """A job by the endpoints that the command line takes: a PID, host:port, a folder, a report; without one,
    $PROBE_ENDPOINT or the only target here. Nothing is asked yet.

    `all_ranks` stands for --all, `ranks` for --rank; with `attach` False no recorder is put into a process.
    """
    with _clear():
        texts = [str(endpoint) for endpoint in endpoints] or split(os.environ.get("PROBE_ENDPOINT", ""))
        named = tuple(dict.fromkeys(endpoint for text in texts for endpoint in endpoints_of(text)))
    return Job(named, all_ranks, frozenset(ranks), attach)


@dataclass(frozen=True)
class Job:
    """One target or more."""

    endpoints: tuple[Endpoint, ...]
    all_ranks: bool = False
    ranks: frozenset[int] = frozenset()
    attach: bool = True

    def sql(self, statement: str, *, max_rows: int = 100_000, timeout_s: float = 10.0) -> Answer:
        """The rows of one read-only statement, from all targets as one database."""
        request = QueryRequest(statement, max_rows, timeout_s)
        with _clear():
            answers = self._session().query_arrow(request, Limits())
            for _, data in answers.answered[:1]:  # several have one answer together
                return Answer(data.body, tuple(data.notes), _unanswered(answers))
            raise _first(answers)

    def backtrace(self, *, all_threads: bool = False, timeout_s: float = 10.0) -> Stacks:
        """Where each target is."""
        with _clear():
            question = partial(ask_stacks, all_threads=all_threads)
            answers = self._session().ask(question, timeout_s=timeout_s, needs_agent=False)
            if not answers.answered:
                raise _first(answers)
        return Stacks(_by_rank(answers.answered), _unanswered(answers), all_threads)

    def eval(self, code: str, *, timeout_s: float | None = None, at_step: bool = False) -> Output:
        """Run code in each target; with `at_step` on the training thread when the next step has ended."""
        request = EvalRequest(code, None, timeout_s, at_step)
        with _clear():
            answers = self._session().ask(
                partial(evaluate, request=request, live=False), timeout_s=None if timeout_s is None else timeout_s + 5
            )
            if not answers.answered:
                raise _first(answers)
        texts = {
            str(endpoint): "".join(text for stream, text in outcome.kept if stream != "remark")
            for endpoint, outcome in answers.answered
        }
        failed = tuple(str(endpoint) for endpoint, outcome in answers.answered if outcome.exit_code)
        notes = dict.fromkeys(
            text for _, outcome in answers.answered for stream, text in outcome.kept if stream == "remark"
        )
        return Output(texts, failed, _unanswered(answers), tuple(notes))

    def diagnose(self, *, timeout_s: float = 5.0) -> Findings:
        """What is wrong with the job, and what to do."""
        every = list(rules().values())
        with _clear():
            session = self._session()
            found = session.list_ranks()
            targets = {endpoint: one.info for endpoint, one in found.answered}
            question = question_of(every, timeout_s, targets=targets)
            answers = session.ask_ranks(question, timeout_s=3 * timeout_s, ranks=found)
            if not answers.answered:
                raise _first(answers)
            told = [(targets[endpoint], evidence) for endpoint, evidence in answers.answered]
            return Findings(diagnose(every, told, {}, Diagnosed(targets, timeout_s)), _unanswered(answers))

    def __repr__(self) -> str:
        named = ", ".join(map(str, self.endpoints)) or "the only target of this host"
        return f"<probe: {'all ranks of ' if self.all_ranks else ''}{named}>"

    def _session(self) -> Session:
        return Session(self.endpoints, inject=self.attach, everyone=self.all_ranks, ranks=self.ranks)


def _by_rank(taken: Sequence[tuple[Endpoint, Backtrace]]) -> dict[int, Backtrace]:
    """By rank; where that is not known, or several have it, by the PID that was named, or by place."""
    found: dict[int, Backtrace] = {}
    for at, (endpoint, one) in enumerate(taken):
        number = one.rank
        if number is None or number in found:
            number = endpoint.pid if isinstance(endpoint, LocalProcess) else -1 - at
        found[number] = one
    return found


def _unanswered(answers: Answers[T]) -> tuple[str, ...]:
    return tuple(f"{endpoint} did not answer: {error.message}" for endpoint, error in answers.unanswered)


def _first(answers: Answers[T]) -> ProbeError:
    return answers.unanswered[0][1]


@contextmanager
def _clear() -> Iterator[None]:
    """Let a notebook show an error as the command line does, in two lines."""
    try:
        yield
    except ProbeError as error:
        lines = [f"probe: {error.message}", *([f"try: {error.hint}"] if error.hint else [])]
        if sys.version_info >= (3, 11) and error.hint:
            error.add_note(lines[-1])
        shown: Callable[[], Sequence[str]] = lambda: lines  # noqa: E731
        error._render_traceback_ = shown  # type: ignore[attr-defined]  # what IPython asks for
        raise
