"""What `main` hands to a command: the endpoints that were named, and how to ask them.

Runs in the CLI on its main thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from probe_agent.errors import BadRequest, NoAnswer, ProbeError
from probe_agent.wire import QueryRequest, QueryResult

from .client import Client, Data
from .client.loop import run
from .cluster.fanout import Answers, ask
from .cluster.query import Limits, query_arrow, query_rows
from .cluster.ranks.default_target import all_targets, default_target
from .cluster.ranks.ended import told_first
from .cluster.ranks.find_job import find_job
from .cluster.ranks.jobs import one_job
from .cluster.ranks.launched import Started, started_by
from .cluster.ranks.listing import LIST_S, Rank, list_ranks, only_ranks, unique, with_rank
from .endpoint import Endpoint, LocalProcess, MissingRanks, Report, TcpServer, UnixServer
from .messages import print_error, remark
from .stored import stored_output

__all__ = ["Incomplete", "Session", "stored_output"]

T = TypeVar("T")

#: Endpoints whose reason is printed; the line after them names more.
MAX_TOLD = 16


class Incomplete(NoAnswer):
    """Some did not answer, and only an answer of all counts."""

    exit_code = 3


@dataclass
class Session:
    """One run of `probe`."""

    named: tuple[Endpoint, ...] = ()
    inject: bool = True
    #: All ranks of the job, on all hosts; or only these.
    everyone: bool = False
    ranks: frozenset[int] = frozenset()
    #: Partial answers are an error, and show nothing.
    require_all: bool = False
    #: Ask a launcher itself, not the processes it has started.
    itself: bool = False
    endpoints: tuple[Endpoint, ...] = field(default=(), init=False)
    #: Ranks of the job that cannot be asked, and why.
    missing: tuple[tuple[Endpoint | MissingRanks, ProbeError], ...] = field(default=(), init=False)
    _found: Answers[Rank] | None = field(default=None, init=False)
    #: Launchers among the named endpoints; None until they are known.
    _launched: list[Started] | None = field(default=None, init=False)
    #: What targets among them have started, and is not asked.
    beside: list[Started] = field(default_factory=list, init=False)

    def ask(
        self,
        question: Callable[[Client], Awaitable[T]],
        *,
        timeout_s: float | None,
        ctrl_c: bool = True,
        needs_agent: bool = True,
        of_many: bool = False,
        doing: str = "asking",
    ) -> Answers[T]:
        """Put `question` to every endpoint at once and wait `timeout_s` for each. With --all or --rank it is put to
        each target by itself; `of_many` says that a host server answers it for all of its targets together. `doing` is
        shown meanwhile; it is empty for a question that prints its answer as it comes.

        A single endpoint that fails raises; with several, each failure is printed on stderr and is in the result.

        Ctrl-C cancels the question at the other end too, and raises KeyboardInterrupt; with `ctrl_c` False the
        question handles it. With `needs_agent` False it is also put to a process without a recorder, if attaching
        fails.
        """

        async def choose_and_ask() -> Answers[T]:
            await self.follow_launchers()
            if needs_agent and not of_many:
                self._refuse_several_of_a_launcher()
            endpoints = await self.choose()
            if self.everyone and not self.ranks and not of_many:
                found = await self._list_ranks(LIST_S)
                endpoints, self.missing = tuple(endpoint for endpoint, _ in found.answered), found.unanswered
            self._refuse_some(self.missing, len(endpoints))
            return await ask(
                endpoints,
                question,
                timeout_s=timeout_s,
                inject=self.inject,
                remark=remark,
                needs_agent=needs_agent,
                doing=doing,
            )

        answers = run(choose_and_ask(), ctrl_c=ctrl_c)
        return self._told(Answers(answers.answered, self.missing + answers.unanswered))

    def query(self, request: QueryRequest, limits: Limits) -> Answers[QueryResult]:
        """The rows of one SQL statement; several endpoints answer as one database."""
        return self._query(partial(query_rows, request=request, limits=limits))

    def query_arrow(self, request: QueryRequest, limits: Limits) -> Answers[Data]:
        """The same as an Arrow IPC stream."""
        return self._query(partial(query_arrow, request=request, limits=limits))

    def _query(self, question: Callable[..., Coroutine[Any, Any, Answers[T]]]) -> Answers[T]:
        async def choose_and_query() -> Answers[T]:
            endpoints = await self.choose()
            self._refuse_some(self.missing, len(endpoints))
            return await question(endpoints, inject=self.inject, remark=remark)

        answers = run(choose_and_query())
        return self._told(Answers(answers.answered, self.missing + answers.unanswered))

    def list_ranks(self, timeout_s: float | None = None) -> Answers[Rank]:
        """Every target behind the endpoints, by rank. A host server leads to the whole job, and so does this host if
        nothing is named; a PID, a rank or a folder is one target, unless --all asks for its job.

        `answered` has each under its own endpoint; `unanswered` those that were not found.
        """

        async def choose_and_list() -> Answers[Rank]:
            self.everyone = self.everyone or not self.named or any(_is_server(endpoint) for endpoint in self.named)
            await self.choose()
            return await self._list_ranks(LIST_S if timeout_s is None else timeout_s)

        found = self._told(run(choose_and_list()))
        for sentence in told_first(member.info for _, member in found.answered):
            remark(sentence)
        return found

    def ranks_of_job(self, timeout_s: float = LIST_S) -> Answers[Rank]:
        """Those of `list_ranks` that have a rank; a remark names the others."""
        found = self.list_ranks(max(LIST_S, timeout_s))
        ranked = with_rank(found)
        others = [member.info.pid for _, member in found.answered if member.info.rank is None]
        if others:
            names = ", ".join(f"pid {pid}" for pid in others[:16]) + (", …" if others[16:] else "")
            remark(f"without {names}: no rank, or torch.distributed has not set it yet")
        return ranked

    async def _list_ranks(self, timeout_s: float) -> Answers[Rank]:
        if self._found is not None:
            return self._found
        keep_job = any(getattr(endpoint, "job", None) for endpoint in self.named)
        found = unique(
            await list_ranks(self.endpoints, timeout_s=timeout_s, inject=self.inject, remark=remark, keep_job=keep_job)
        )
        one_job([member.info for _, member in found.answered], self.named)
        return Answers(found.answered, self.missing + found.unanswered)

    def ask_ranks(
        self,
        question: Callable[[Client], Awaitable[T]],
        *,
        timeout_s: float | None,
        ranks: Answers[Rank] | None = None,
    ) -> Answers[T]:
        """Put `question` to each of `ranks` (by default all), at once, and wait `timeout_s` for each.

        Those `unanswered` in `ranks` are in the result too: its exit code is the one of the whole.
        """
        found = self.list_ranks() if ranks is None else ranks
        endpoints = tuple(endpoint for endpoint, _ in found.answered)
        answers = self.ask_these(endpoints, question, timeout_s=timeout_s, alone=not found.unanswered)
        return Answers(answers.answered, found.unanswered + answers.unanswered)

    def ask_these(
        self,
        endpoints: tuple[Endpoint, ...],
        question: Callable[[Client], Awaitable[T]],
        *,
        timeout_s: float | None,
        alone: bool = False,
        needs_agent: bool = True,
    ) -> Answers[T]:
        """Put `question` to endpoints that `list_ranks` has found; failures are printed, and with `alone` the only one
        asked raises. With `needs_agent` False also to processes without a recorder."""
        answers = run(
            ask(endpoints, question, timeout_s=timeout_s, inject=False, remark=remark, needs_agent=needs_agent)
        )
        return self._told(answers, may_raise=alone)

    async def choose(self) -> tuple[Endpoint, ...]:
        """The endpoints this run is about: those named, or the only target of this host. With --all, and with a job at
        several host servers, the servers of that whole job; with --rank an endpoint for each of these ranks. Sets
        `missing` too."""
        if self.endpoints or self.missing:
            return self.endpoints
        await self.follow_launchers()
        self._print_launched()
        of_a_job = len(self.named) > 1 and any(isinstance(at, TcpServer | UnixServer) and at.job for at in self.named)
        if not self.everyone and not self.ranks and not of_a_job:
            self.endpoints = self.named or (await default_target(),)
            return self.endpoints
        if self.named and all(isinstance(endpoint, Report) for endpoint in self.named):
            self.endpoints = self.named  # it has the ranks that it has
        else:
            job = await find_job(
                self.named or await all_targets(),
                inject=self.inject,
                remark=remark,
                prepare=bool(self.named),
                ranks=self.ranks,
            )
            self.endpoints, self.missing = job.endpoints, job.missing
        if self.ranks:
            self._found = found = only_ranks(await self._list_ranks(LIST_S), self.ranks)
            self.endpoints, self.missing = tuple(endpoint for endpoint, _ in found.answered), found.unanswered
        return self.endpoints

    async def follow_launchers(self) -> None:
        """Replace each launcher among the named endpoints by the processes it has started."""
        if self.itself or self._launched is not None:
            return
        self._launched = []
        named: dict[Endpoint, None] = {}
        for endpoint in self.named:
            started = await started_by(endpoint.pid) if isinstance(endpoint, LocalProcess) else None
            if started is None or not started.launcher:
                named[endpoint] = None
                self.beside += [started] if started else []
                continue
            self._launched.append(started)
            named.update(dict.fromkeys(started.endpoints))
        self.named = tuple(named)

    def _print_launched(self) -> None:
        for started in self._launched or ():
            remark(f"{started}: {'they are' if len(started.processes) > 1 else 'it is'} asked instead")

    def _refuse_several_of_a_launcher(self) -> None:
        """Raise if one target is meant, and a launcher has started several."""
        several = [started for started in self._launched or () if len(started.processes) > 1]
        if several and not self.everyone and not self.ranks:
            started = several[0]
            raise BadRequest(
                f"{started}: {len(started.processes)} targets, and this command takes one",
                f"name one: probe {started.processes[0].pid} …; ask all: probe -t {started.pid} --all …;"
                " ask the launcher itself: --itself",
            )

    def _told(self, answers: Answers[T], *, may_raise: bool = True) -> Answers[T]:
        """Return `answers` after printing each failure. The only one asked raises."""
        if may_raise and answers.num_asked == 1 and answers.unanswered:
            raise answers.unanswered[0][1]
        self.report(answers)
        return answers

    def report(self, answers: Answers[T]) -> None:
        """Print who did not answer, and why."""
        for endpoint, error in answers.unanswered[:MAX_TOLD]:
            print_error(error, of=str(endpoint))
        if len(answers.unanswered) > MAX_TOLD:
            remark(f"and {len(answers.unanswered) - MAX_TOLD} more; --format json has all of them, with the reasons")
        if answers.unanswered:
            remark(answers.summary())
        self._refuse_some(answers.unanswered, len(answers.answered))

    def _refuse_some(self, failed: Sequence[tuple[object, ProbeError]], num_others: int) -> None:
        if self.require_all and failed and num_others:
            who = ", ".join(str(endpoint) for endpoint, _ in failed[:16]) + (", …" if len(failed) > 16 else "")
            raise Incomplete(
                f"{len(failed)} of {len(failed) + num_others} did not answer ({who}); with --require-all"
                " nothing is shown",
                failed[0][1].hint,
            )

    @property
    def num_endpoints(self) -> int:
        """How many will be asked; until they are known, --all and --rank count as several."""
        return max(2 if self.everyone or self.ranks else 1, len(self.named))

    def processes(self, pid: int | None) -> list[int]:
        """The PIDs for a command about processes of this host: its own argument, or the endpoints."""
        if pid is not None:
            self.named = (LocalProcess(pid),)
        run(self.follow_launchers())
        self._print_launched()
        pids = [endpoint.pid for endpoint in self.named if isinstance(endpoint, LocalProcess)]
        if not pids or len(pids) < len(self.named):
            raise BadRequest("this command is about a process of this host, and none is named", "name its PID")
        return pids


def _is_server(endpoint: Endpoint) -> bool:
    return isinstance(endpoint, TcpServer | UnixServer) and endpoint.rank is None and endpoint.pid is None
