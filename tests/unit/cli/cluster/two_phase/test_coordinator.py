"""Agreement of many ranks over a network that loses and delays: all run the code, or none, or the answer says so."""

from __future__ import annotations

import asyncio
import random
from dataclasses import asdict
from typing import Any

import pytest

from probe_agent.errors import NoAnswer
from probe_agent.recorder.evaluate.two_phase import Ticket
from probe_agent.recorder.steps.queue import StepQueue
from probe_agent.recorder.steps.step import Step
from probe_agent.wire import StepMark, TicketMove, TicketState, decode
from probe_cli.cluster.two_phase import coordinator
from probe_cli.cluster.two_phase.coordinator import NothingRan, Part, SomeRan, _Coordinator

STEP_S = 0.01


class Code:
    started = 0.0

    def __init__(self) -> None:
        self.ran_after: list[int] = []

    def run(self) -> None:
        self.started = 1.0


class Rank:
    """The training thread and the recorder of one rank that holds code, and the network to it."""

    def __init__(self, number: int, first_step: int) -> None:
        self.number = number
        self.step = Step()
        self.step.thread, self.step.number = 1, first_step
        self.queue = StepQueue()
        self.code: Any = Code()
        self.ran_at: list[int] = []
        self.code.run = lambda: self.ran_at.append(self.ended)
        self.ticket = Ticket(self.code, self.step, self.queue, lambda _, error: True)
        self.queue.submit(self.ticket)
        #: Move -> what happens to it: "lost" on its way, "unheard" (it arrives, the answer does not), or seconds.
        self.trouble: dict[str, Any] = {}
        self.gone = False

    @property
    def ended(self) -> int:
        return self.step.number - 1

    async def send(self, kind: type[TicketState], method: str, path: str, body: TicketMove) -> TicketState:
        trouble = self.trouble.get(body.do)
        if self.gone or trouble == "lost":
            await asyncio.sleep(60)
        if isinstance(trouble, float):
            await asyncio.sleep(trouble)
        answer = self.ticket.answer(body.do, body.step)
        if trouble == "unheard":
            await asyncio.sleep(60)
        if trouble == "dies":
            self.gone = True
            raise NoAnswer(f"rank {self.number} broke off")
        marks = tuple(StepMark(**mark) for mark in answer.pop("marks", ()))  # type: ignore[attr-defined]
        return decode(kind, {**answer, "marks": [asdict(mark) for mark in marks]})


async def agree(ranks: list[Rank], at: int | None = None) -> tuple[int | None, Exception | None]:
    """Take steps on all ranks until some after the agreement; return the agreed step, or the message instead."""

    async def train() -> None:
        while True:
            for rank in ranks:
                rank.step.number += 1
                rank.queue.run_pending()
            await asyncio.sleep(STEP_S)

    training = asyncio.create_task(train())
    parts: list[Any] = [Part(rank.number, f"host:{rank.number}", rank) for rank in ranks]  # type: ignore[arg-type]
    agreement = _Coordinator("ticket", parts, at, lambda text: None)
    said: Exception | None = None
    try:
        await agreement.agree()
    except (NothingRan, SomeRan) as error:
        said = error
        for rank in ranks:
            rank.ticket.withdraw()  # the client leaves
    target = ranks[0].ended + 80 if agreement.step is None else agreement.step + 2
    while ranks[0].ended < target:
        await asyncio.sleep(STEP_S)
    training.cancel()
    return agreement.step, said


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the limits of a fast network, so that many rounds fit, and no signal handlers, which only one can have."""
    monkeypatch.setattr(coordinator, "CONFIRM_S", 0.1)
    monkeypatch.setattr(coordinator, "HOLD_S", 0.5)
    monkeypatch.setattr(coordinator, "MAX_ATTEMPTS", 3)
    monkeypatch.setattr(coordinator, "UNDERSTAND_S", 0.1)

    async def interruptible(question: Any) -> Any:
        return await question

    monkeypatch.setattr(coordinator, "interruptible", interruptible)


def job(num_ranks: int, counted: bool = True) -> list[Rank]:
    ranks = [Rank(number, 20) for number in range(num_ranks)]
    for rank in ranks:
        rank.step.is_counted = counted
    return ranks


def test_all_ranks_run_it_once_after_the_agreed_step() -> None:
    ranks = job(4)

    step, said = asyncio.run(agree(ranks))

    assert said is None
    assert step is not None
    assert [rank.ran_at for rank in ranks] == [[step]] * 4


def test_a_rank_that_confirms_go_too_late_makes_all_try_a_later_step() -> None:
    ranks = job(3)
    ranks[2].trouble = {"go": 0.3}
    moves = []
    patient = ranks[2].send

    async def recovers(kind: Any, method: str, path: str, body: TicketMove) -> TicketState:
        moves.append(body.do)
        if moves.count("go") > 1:
            ranks[2].trouble = {}
        return await patient(kind, method, path, body)

    ranks[2].send = recovers  # type: ignore[method-assign]

    step, said = asyncio.run(agree(ranks))

    assert said is None
    assert moves.count("go") == 2
    assert moves.count("revoke") == 1
    assert [rank.ran_at for rank in ranks] == [[step]] * 3


def test_with_a_message_lost_for_good_to_one_rank_it_runs_nowhere() -> None:
    jobs = {(move, trouble): job(3) for move in ("look", "arm", "go") for trouble in ("lost", "unheard")}
    for (move, trouble), ranks in jobs.items():
        ranks[1].trouble = {move: trouble}

    async def many() -> list[tuple[int | None, Exception | None]]:
        return await asyncio.gather(*map(agree, jobs.values()))

    for (lost, ranks), (step, said) in zip(jobs.items(), asyncio.run(many()), strict=True):
        assert step is None, lost
        assert isinstance(said, NothingRan), lost
        assert said.exit_code == 3
        assert "rank 1 cannot take part" in said.message
        assert [rank.ran_at for rank in ranks] == [[], [], []], lost


def test_a_server_that_dies_after_forwarding_the_commit_is_reported() -> None:
    ranks = job(3)
    ranks[1].trouble = {"go": "dies"}

    step, said = asyncio.run(agree(ranks))

    assert step is None
    assert isinstance(said, SomeRan)
    assert "rank 1 may have run it" in said.message
    assert said.exit_code == 3
    assert [ranks[0].ran_at, ranks[2].ran_at] == [[], []]


def test_with_any_fault_all_run_it_or_none_or_the_answer_says_so() -> None:
    chance = random.Random(7)

    async def many() -> list[tuple[list[Rank], int | None, Exception | None]]:
        jobs = []
        for _ in range(20):
            ranks = job(chance.randint(2, 4))
            for move in ("look", "arm", "go", "revoke"):
                what = chance.choice([None, None, 0.02, 0.08, 0.15, 0.4, "lost", "unheard", "dies"])
                chance.choice(ranks).trouble[move] = what
            jobs.append(ranks)
        ended = await asyncio.gather(*(agree(ranks) for ranks in jobs))
        return [(ranks, step, said) for ranks, (step, said) in zip(jobs, ended, strict=True)]

    outcomes = asyncio.run(many())

    for ranks, step, said in outcomes:
        ran = [rank.ran_at for rank in ranks]
        if said is None:
            assert ran == [[step]] * len(ranks)
        elif not isinstance(said, SomeRan):
            assert ran == [[]] * len(ranks), said
    assert {type(said) for _, _, said in outcomes} >= {type(None), NothingRan}
