"""The coordinator: runs code on the training thread of every rank between the same two steps, or on none.

Runs in the CLI on its event loop; a rank's side is in probe_agent/recorder/evaluate/two_phase.py. In this order:

1. Hold. Every rank gets the code, compiles it and keeps it, on a connection that stays open. If one cannot, all drop
   it, because that connection ends; it also ends when this process does.
2. Look. Every rank says which steps have ended and when. Numbers that mean different steps on different ranks are
   matched by the collectives (steps.py).
3. Prepare (`arm` on the wire). Every rank is told a step so far ahead that all of what follows, timeouts included, is
   over before it ends. If one does not confirm, or the step has come too near, all abort, and a later step is tried.
4. Commit (`go`). Only when all have confirmed: every rank is told to run the code. If one does not confirm that, all
   abort (`revoke`), for which there is still time. A prepared rank whose step ends without a commit runs nothing, and
   waits for nothing.
5. The step ends, the code runs, its output comes. From here a rank that leaves stops nothing: a collective needs all.

As in every agreement over a network, the last message can be lost. Between the first and the last commit, a few
milliseconds, (a) this process is killed, by a signal that it cannot hold back: the ranks that were told run the code,
the others drop it; (b) a host server forwards the commit and dies before it can confirm: its ranks run the code, the
others abort; or, later, (c) a rank dies, or its recorder is detached, before the step has ended. Then a collective in
the code waits for missing ranks until its group's timeout. What can be seen of that is reported.
"""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from probe_agent.errors import AttachRefused, NoAnswer, ProbeError
from probe_agent.wire import HoldRequest, TicketMove, TicketState
from probe_cli.client import open_client
from probe_cli.client.loop import interruptible
from probe_cli.cluster.fanout import allow_descriptors
from probe_cli.endpoint import Endpoint
from probe_cli.text import num_ranks, ranks_text

from .participant import Part
from .steps import are_comparable, fastest_step_s, newest_step, shifts, step_after

__all__ = ["NothingRan", "Part", "SomeRan", "run_together"]

MAX_ATTEMPTS = 5
#: How long a rank may take to compile and hold the code.
HOLD_S = 10.0
#: How long it may take until each rank has ended two steps, and the numbers of all are understood.
LOOK_S = 300.0
UNDERSTAND_S = 5.0
#: After this long without a step a remark says what is waited for.
SILENCE_S = 5.0
#: The least time for a rank to confirm a prepare or a commit; more where looking takes long.
CONFIRM_S = 0.5
#: A step further away than a rank holds code is not waited for.
MAX_AWAY_S = 3000.0


class NothingRan(ProbeError):
    """Some rank could not take part, so none did."""

    def __init__(self, message: str, hint: str, exit_code: int) -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code


class SomeRan(ProbeError):
    """Some ranks ran the code: unlikely, and no protocol can rule it out."""

    exit_code = 3

    def __init__(self, ran: Sequence[int], unsure: Sequence[int], step: int, errors: Sequence[ProbeError]) -> None:
        said = [f"{num_ranks(ran)} ran the code"] if ran else []
        said += [f"{num_ranks(unsure)} may have run it and do not answer any more"] if unsure else []
        why = f" ({errors[0].message})" if errors else ""
        super().__init__(
            f"after step {step} {' and '.join(said)}; on the others it was aborted{why}",
            "look for ranks that wait in a collective of the code: probe … backtrace --all-ranks",
        )


@dataclass(frozen=True)
class _Plan:
    """A step in the numbers of the lowest rank, how to tell it to each, and how long they may take to confirm."""

    step: int
    shifted: dict[int, int]
    limit_s: float


async def run_together(
    ranks: Sequence[tuple[int, Endpoint]],
    code: str,
    *,
    at: int | None,
    timeout_s: float | None,
    remark: Callable[[str], None],
) -> list[Part]:
    """Each rank's part when the code has run on all of `ranks` after the same step: step `at`, or the earliest that
    they can agree on. Raises NothingRan when it ran nowhere, KeyboardInterrupt at Ctrl-C: before the commit it then
    runs nowhere, later everywhere."""
    ticket = uuid.uuid4().hex
    request = HoldRequest(code, ticket, timeout_s)
    allow_descriptors(2 * len(ranks))
    async with AsyncExitStack() as stack:
        parts = [Part(rank, on, await stack.enter_async_context(open_client(on))) for rank, on in ranks]
        listening = [asyncio.create_task(part.listen(request)) for part in parts]
        stack.push_async_callback(_hang_up, listening)
        coordinator = _Coordinator(ticket, parts, at, remark)
        await interruptible(coordinator.hold())
        try:
            await coordinator.agree()
            await interruptible(_ended(listening))
        except KeyboardInterrupt:
            if coordinator.step is not None:
                remark("too late to cancel: the code runs on every rank; its output is not awaited")
            raise
    return parts


def _refused(silent: Mapping[int, ProbeError], num_asked: int) -> NothingRan:
    """Why nothing ran: these ranks could not take part."""
    rank, error = next(iter(silent.items()))
    others = f"; nor can rank {ranks_text(set(silent) - {rank})}" if len(silent) > 1 else ""
    code, hint = 1, "update the host server and the recorder there if they are of an older version, and attach again"
    if isinstance(error, NoAnswer | AttachRefused):
        code, hint = 4 if len(silent) == num_asked else 3, error.hint
    return NothingRan(f"the code ran nowhere: rank {rank} cannot take part: {error.message}{others}", hint, code)


@asynccontextmanager
async def _undisturbed() -> AsyncIterator[None]:
    """Nothing that can be held back ends us in here; what came has its effect afterwards."""
    loop = asyncio.get_running_loop()
    came: list[signal.Signals] = []
    held_back = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in held_back:
        loop.add_signal_handler(number, came.append, number)
    try:
        yield
    finally:
        for number in held_back:
            loop.remove_signal_handler(number)
        for number in came:
            signal.raise_signal(number)


async def _ended(listening: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(listening)


async def _hang_up(listening: Sequence[asyncio.Task[None]]) -> None:
    for task in listening:
        task.cancel()
    await asyncio.wait(listening)


class _Coordinator:
    """Steps 1 to 4."""

    def __init__(self, ticket: str, parts: list[Part], at: int | None, remark: Callable[[str], None]) -> None:
        self._ticket = ticket
        self._parts = parts
        self._at = at
        self._remark = remark
        #: Those that did not answer the last move that needed all.
        self._silent: dict[int, ProbeError] = {}
        #: What all have agreed on.
        self.step: int | None = None

    async def hold(self) -> None:
        """Every rank holds the code."""
        waiting = [asyncio.create_task(part.held.wait()) for part in self._parts]
        _, late = await asyncio.wait(waiting, timeout=HOLD_S)
        for task in late:
            task.cancel()
        for part in self._parts:
            if not part.held.is_set():
                part.error = NoAnswer(
                    f"{part.endpoint} did not take the code within {HOLD_S:g} s",
                    "look for a busy host: probe … ranks",
                )
        self._check()

    def _check(self) -> None:
        """Raise when some rank does not hold the code any more."""
        silent = {part.rank: part.error for part in self._parts if part.error is not None}
        if silent:
            raise _refused(silent, len(self._parts))
        ended = [part for part in self._parts if part.state]
        if ended:
            said = ended[0].output[-1][1].rstrip() if ended[0].output else ended[0].state
            raise NothingRan(
                f"the code ran nowhere: {num_ranks(part.rank for part in ended)} could not compile it:\n{said}",
                "correct the code",
                1,
            )

    async def agree(self) -> None:
        """Until all have agreed on `step`, and run the code when it has ended."""
        limit_s = CONFIRM_S
        for attempt in range(MAX_ATTEMPTS):
            plan = await interruptible(self._plan(limit_s))
            if await interruptible(self._prepare(plan)):
                async with _undisturbed():
                    if await self._commit(plan):
                        self.step = plan.step
                        everybody = num_ranks(part.rank for part in self._parts)
                        self._remark(f"agreed: the code runs on {everybody} when step {plan.step} has ended")
                        return
            if self._at is not None:
                raise NothingRan(
                    f"the code ran nowhere: step {self._at} ended before all ranks had agreed", "name a later step", 1
                )
            limit_s = plan.limit_s * 2
            if attempt == 0:
                self._remark(f"step {plan.step} ended before all ranks had agreed; trying a later one")
        if self._silent:
            raise _refused(self._silent, len(self._parts))
        raise NothingRan(
            f"the code ran nowhere: {MAX_ATTEMPTS} times a step ended before all ranks had agreed",
            "name a step far ahead: --at-step N (the hosts may be busy, or the steps differ a lot)",
            1,
        )

    async def _plan(self, limit_s: float) -> _Plan:
        """A step that is far enough ahead; waits until it is near enough."""
        asked = time.monotonic()
        understood: dict[int, int] | None = None
        waiting = told = False
        while True:
            began = time.monotonic()
            states = await self._look()
            now = time.monotonic()
            step_s = fastest_step_s(states)
            understood = understood or shifts(states)
            if step_s is None:
                if now - asked > LOOK_S:
                    raise self._no_steps(states)
                if now - asked > SILENCE_S and not told:
                    told = True
                    self._remark("waiting until every rank has ended two steps")
            elif understood is None and now - asked > max(UNDERSTAND_S, 5 * step_s):
                understood = self._by_count(states)
            if step_s is None or understood is None:
                await asyncio.sleep(0.05 if step_s is None else min(0.5, max(0.05, step_s / 2)))
                continue
            confirm_s = max(limit_s, 4 * (now - began))
            lead_s = 3 * confirm_s + 0.2  # prepare, commit and, if need be, abort
            newest = newest_step(states, understood)
            earliest = step_after(newest, lead_s, step_s)
            if self._at is None:
                return _Plan(earliest, understood, confirm_s)
            if not waiting or self._at <= newest:
                self._check_named(self._at, newest, earliest, (self._at - earliest) * step_s)
            away_s = (self._at - newest) * step_s  # or more: steps may take longer
            if away_s <= 4 * lead_s:
                return _Plan(self._at, understood, confirm_s)
            if not waiting:
                waiting = True
                self._remark(f"waiting for step {self._at}: step {newest} has ended; about {away_s:.0f} s")
            await asyncio.sleep(min(1.0, away_s / 4))

    def _check_named(self, at: int, newest: int, earliest: int, away_s: float) -> None:
        """Raise when the step that was named cannot be agreed on."""
        if at < earliest:
            seen = "has passed" if at <= newest else "is too near for all ranks to agree on"
            raise NothingRan(
                f"the code ran nowhere: step {at} {seen} (step {newest} has ended)",
                f"use step {earliest} or a later one, or --at-step next",
                1,
            )
        if away_s > MAX_AWAY_S:
            raise NothingRan(
                f"the code ran nowhere: step {at} is about {away_s / 3600:.1f} h ahead (step {newest} has ended)",
                f"retry when it is less than {MAX_AWAY_S / 60:.0f} min away",
                1,
            )

    def _by_count(self, states: dict[int, TicketState]) -> dict[int, int]:
        if are_comparable(states):
            return dict.fromkeys(states, 0)
        own = [rank for rank, state in states.items() if not state.counted]
        raise NothingRan(
            f"the code ran nowhere: the step numbers of the ranks cannot be matched: {num_ranks(own)} counted steps"
            " only since the attach, and no group of all ranks has collectives in each step",
            "use an optimizer that counts its steps on the host, or run the code on each rank by itself",
            1,
        )

    def _no_steps(self, states: dict[int, TicketState]) -> NothingRan:
        idle = {rank: state for rank, state in states.items() if len(state.marks) < 2}
        rank, state = next(iter(idle.items()))
        return NothingRan(
            f"the code ran nowhere: fewer than two steps ended within {LOOK_S:g} s on {num_ranks(idle)};"
            f" the last step of rank {rank} was {state.last_step}",
            "look where it is: probe … backtrace --all-ranks",
            1,
        )

    async def _prepare(self, plan: _Plan) -> bool:
        """Whether all ranks have confirmed the step, with enough time left to commit."""
        states, silent = await self._move("arm", plan, plan.limit_s)
        self._silent = silent
        if not silent and all(state.ok for state in states.values()):
            looks = await self._look()
            if (shifts(looks) or plan.shifted) != plan.shifted:
                raise NothingRan(
                    "the code ran nowhere: the step numbers of the ranks cannot be matched for sure",
                    "try again (other threads of the job may use the groups of all ranks)",
                    1,
                )
            step_s = fastest_step_s(looks) or 0.0
            newest = newest_step(looks, plan.shifted)
            if (plan.step - newest - 1) * step_s >= 2 * plan.limit_s:
                return True
        await self._move("revoke", plan, plan.limit_s)  # a rank that this does not reach gets no commit either
        self._check()
        return False

    async def _commit(self, plan: _Plan) -> bool:
        """Whether all ranks run it when the step has ended; if not, none does, and what went wrong is raised."""
        states, silent = await self._move("go", plan, plan.limit_s)
        self._silent = silent
        told = [state.ok for state in states.values()]
        if not silent and all(told):
            return True
        revoked, lost = await self._move("revoke", plan, plan.limit_s)
        ran = [rank for rank, state in revoked.items() if not state.ok]
        unsure = [rank for rank in lost if rank in silent or states[rank].ok]
        if ran or unsure:
            raise SomeRan(ran, unsure, plan.step, [*silent.values(), *lost.values()])
        self._check()
        return False

    async def _move(
        self, do: str, plan: _Plan | None, limit_s: float
    ) -> tuple[dict[int, TicketState], dict[int, ProbeError]]:
        """The state of each rank after this move, and of those that did not answer, why."""
        answers = await asyncio.gather(
            *(self._ask(part, do, plan, limit_s) for part in self._parts), return_exceptions=True
        )
        states: dict[int, TicketState] = {}
        silent: dict[int, ProbeError] = {}
        for part, answer in zip(self._parts, answers, strict=True):
            if isinstance(answer, TicketState):
                states[part.rank] = answer
            elif isinstance(answer, ProbeError):
                silent[part.rank] = answer
            else:
                raise answer
        return states, silent

    async def _look(self) -> dict[int, TicketState]:
        """How every rank stands."""
        states, silent = await self._move("look", None, HOLD_S)
        self._check()
        if silent:
            raise _refused(silent, len(self._parts))
        return states

    async def _ask(self, part: Part, do: str, plan: _Plan | None, limit_s: float) -> TicketState:
        step = None if plan is None else plan.step + plan.shifted[part.rank]
        asked = part.client.send(TicketState, "POST", "/v1/eval/ticket", TicketMove(self._ticket, do, step))
        try:
            return await asyncio.wait_for(asked, limit_s)
        except (TimeoutError, asyncio.TimeoutError):  # two classes until Python 3.11
            raise NoAnswer(
                f"{part.endpoint} did not answer within {limit_s:.1f} s", "look for a busy host: probe … ranks"
            ) from None
