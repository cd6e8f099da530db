"""What `main` hands to a command: the endpoints that were named, and how to ask them.

Runs in the CLI on its main thread. Heavy packages are loaded only once a question is really asked.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from .endpoint import Endpoint, LocalProcess

if TYPE_CHECKING:
    from .client import Client
    from .cluster.ask import Answers

__all__ = ["Session", "remark"]

T = TypeVar("T")


def remark(text: str) -> None:
    """Say something that is not data: it goes to stderr."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Session:
    """One run of `probe`."""

    named: tuple[Endpoint, ...] = ()
    inject: bool = True
    endpoints: tuple[Endpoint, ...] = field(default=(), init=False)

    def ask(
        self,
        question: Callable[[Client], Awaitable[T]],
        *,
        timeout_s: float | None,
        ctrl_c: bool = True,
        needs_agent: bool = True,
    ) -> Answers[T]:
        """Put `question` to every endpoint at once and wait `timeout_s` for each.

        A single endpoint that fails raises; of several, each failure is said on stderr and is in the result.

        Ctrl-C cancels the question at the other end too, and raises KeyboardInterrupt; with `ctrl_c` False the
        question looks after that itself. With `needs_agent` False it is put to a process without the agent, too, when
        that cannot come.
        """
        from .client.loop import run
        from .cluster.ask import ask

        async def choose_and_ask() -> Answers[T]:
            endpoints = await self.choose()
            return await ask(
                endpoints,
                question,
                timeout_s=timeout_s,
                inject=self.inject,
                remark=remark,
                needs_agent=needs_agent,
            )

        answers = run(choose_and_ask(), ctrl_c=ctrl_c)
        if answers.num_asked == 1 and answers.failed:
            raise answers.failed[0][1]
        self.report(answers)
        return answers

    def report(self, answers: Answers[T]) -> None:
        """Say on stderr who did not answer, and why."""
        for endpoint, error in answers.failed:
            named = error.message if str(endpoint) in error.message else f"{endpoint}: {error.message}"
            remark(f"probe: {named}" + (f"\ntry: {error.hint}" if error.hint else ""))
        if answers.failed:
            remark(answers.summary())

    async def choose(self) -> tuple[Endpoint, ...]:
        """The endpoints this run is about: those named, or the only target of this host."""
        from .cluster.choose import the_only_target

        if not self.endpoints:
            self.endpoints = self.named or (await the_only_target(),)
        return self.endpoints

    @property
    def num_endpoints(self) -> int:
        """How many will be asked."""
        return max(1, len(self.named))

    def processes(self, pid: int | None) -> list[int]:
        """The PIDs a command about processes of this host is meant for: its own argument, or the endpoints."""
        import click

        pids = [endpoint.pid for endpoint in self.named if isinstance(endpoint, LocalProcess)]
        if pid is not None:
            return [pid]
        if not pids or len(pids) < len(self.named):
            raise click.UsageError("this command is about a process of this host: name its PID")
        return pids
