"""A parameter server: rank 0 gathers gradients, updates and broadcasts; the others compute, and make other calls."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from probe_cli.cluster.compare.by.module import slow_module
from probe_cli.cluster.compare.comparison import Verdict
from probe_cli.cluster.compare.facts import Clock, Facts, Who
from probe_cli.cluster.compare.named import named
from probe_cli.cluster.compare.study import study
from probe_cli.cluster.compare.verdict import judge

from .made import BEGAN, CALL, STEP, USUAL, columns

NUM_RANKS, NUM_STEPS = 4, 120
WORK_S, SEND_S = 0.014, 0.0002


def server_job(update_s: float, slow_s: float = 0.0, send_s: float = SEND_S) -> list[Facts]:
    """Return a job in which an update takes `update_s`, rank 3 `slow_s` longer than other workers, and the weights are
    on their way back for `send_s`."""
    chance = np.random.default_rng(1)
    now = [BEGAN] * NUM_RANKS
    calls: list[list[dict[str, object]]] = [[] for _ in range(NUM_RANKS)]
    ends: list[list[float]] = [[] for _ in range(NUM_RANKS)]

    def call(rank: int, step: int, op: str, start: float, ended: float) -> None:
        seq = len(calls[rank])
        told = {"step": step, "seq": seq, "op": op, "start": start, "ended": ended, "wait": ended - start}
        calls[rank].append({**CALL, **told, "phase": "other", "wait_phase": "other", "by_cpp": False})

    for step in range(NUM_STEPS):
        came = [now[rank] + (WORK_S * chance.normal(1.0, 0.03) if rank else 0.0) for rank in range(NUM_RANKS)]
        came[3] += slow_s
        gathered = max(came) + SEND_S
        updated = gathered + update_s
        call(0, step, "gather", came[0], gathered)
        call(0, step + 1, "broadcast", updated, updated + SEND_S)
        now[0] = updated + SEND_S
        ends[0].append(updated - SEND_S)  # its optimizer's step
        for rank in range(1, NUM_RANKS):
            call(rank, step, "gather", came[rank], came[rank] + SEND_S)
            now[rank] = max(updated, came[rank]) + SEND_S + send_s
            call(rank, step, "broadcast", came[rank] + SEND_S, now[rank])
            ends[rank].append(now[rank])
    found = []
    for rank in range(NUM_RANKS):
        durations = np.diff(ends[rank], prepend=BEGAN)
        steps = [
            {"number": number, "ended": end, "duration": took, **dict.fromkeys(USUAL, 0.0), **STEP, "other": took}
            for number, (end, took) in enumerate(zip(ends[rank], durations, strict=True))
        ]
        who = Who(rank, "node0", 1000 + rank)
        found.append(Facts(who, steps=columns(steps), calls=columns(calls[rank]), clock=Clock(0.0, 0.0, 6)))
    return found


def verdict_on(facts: list[Facts]) -> Verdict:
    found = study(facts, 100)
    return judge(found, named(found))


def test_work_that_only_one_rank_does_is_named_with_what_it_may_cost_when_all_wait_for_it() -> None:
    verdict = verdict_on(server_job(0.006))

    assert (verdict.state, verdict.ranks, verdict.exit_code) == ("stands out", (0,), 5), verdict.sentence
    assert verdict.cost == pytest.approx(0.006, rel=0.1)
    assert verdict.sentence.startswith("rank 0 holds the job up, by up to 2")
    assert "all others wait for work that only rank 0 does, after the last collective: " in verdict.sentence


def test_a_server_without_steps_of_its_own_is_named_by_those_of_its_workers() -> None:
    """It updates by hand: nothing tells its recorder where a step ends."""
    server, *workers = server_job(0.006)
    stepless = replace(server, steps={}, calls={**server.calls, "step": np.zeros_like(server.calls["step"])})

    found = study([stepless, *workers], 100)
    verdict = judge(found, named(found))

    assert (verdict.state, verdict.ranks) == ("stands out", (0,)), verdict.sentence
    assert verdict.cost == pytest.approx(0.006, rel=0.1)
    assert "rank 0 ends no steps of its own: those of another rank are taken for it" in found.notes


def test_actors_without_steps_of_their_own_are_compared_by_those_of_their_learner() -> None:
    """They roll out without gradients; what other tables say of the one that is late is looked up as for any rank."""
    learner, *actors = server_job(0.006, slow_s=0.010)
    stepless = [
        replace(actor, steps={}, calls={**actor.calls, "step": np.zeros_like(actor.calls["step"])}) for actor in actors
    ]

    found = study([learner, *stepless], 100)
    verdict = judge(found, named(found))

    assert (verdict.state, verdict.ranks) == ("stands out", (3,)), verdict.sentence
    assert verdict.cost == pytest.approx(0.010, rel=0.1)
    assert slow_module(found.facts, found.facts[3].who) is None


def test_calls_of_the_policy_are_no_steps_of_an_actor() -> None:
    """Where a rank has no optimizer, its recorder may take each call of a module for a step."""
    learner, *actors = server_job(0.006, slow_s=0.010)
    learner = replace(learner, steps={**learner.steps, "backward": np.full(NUM_STEPS, 0.003)})

    def by_call(actor: Facts) -> Facts:
        num = 12 * NUM_STEPS
        ended = np.linspace(BEGAN, actor.steps["ended"].max(), num)
        steps = {name: np.repeat(values, 12) for name, values in actor.steps.items()}
        steps |= {"number": np.arange(num), "ended": ended, "duration": np.full(num, ended[1] - ended[0])}
        return replace(actor, steps=steps, calls={**actor.calls, "step": 12 * actor.calls["step"]})

    found = study([learner, actors[0], *map(by_call, actors[1:])], 100)
    verdict = judge(found, named(found))

    assert (verdict.state, verdict.ranks) == ("stands out", (3,)), verdict.sentence
    assert verdict.cost == pytest.approx(0.010, rel=0.1)
    assert sum("ends no steps of its own" in note for note in found.notes) == 2


def test_steps_that_an_actor_began_to_count_late_are_not_its_own() -> None:
    """As long as those of the learner, but most of its calls came before the first of them."""
    learner, *actors = server_job(0.006, slow_s=0.010)
    learner = replace(learner, steps={**learner.steps, "backward": np.full(NUM_STEPS, 0.003)})
    num = NUM_STEPS // 5
    late = {name: values[-num:] for name, values in actors[0].steps.items()} | {"number": np.arange(num)}
    calls = {**actors[0].calls, "step": np.maximum(actors[0].calls["step"] - NUM_STEPS + num, -1)}

    found = study([learner, replace(actors[0], steps=late, calls=calls), *actors[1:]], 100)
    verdict = judge(found, named(found))

    assert "rank 1 ends no steps of its own: those of another rank are taken for it" in found.notes
    assert (verdict.state, verdict.ranks) == ("stands out", (3,)), verdict.sentence


def by_sends(facts: list[Facts]) -> list[Facts]:
    """The same job with a send and a receive between each worker and the server, in place of the collectives."""
    server, *workers = facts
    last = workers[-1].calls  # whose gradient comes last
    rows = []
    for at in range(len(last["step"])):
        is_gather = last["op"][at] == "gather"
        for worker in workers:
            start, ended = worker.calls["start"][at], worker.calls["ended"][at]
            own = {"start": max(start, rows[-1]["ended"] if rows else BEGAN), "ended": ended} if is_gather else {}
            sent = server.calls["start"][at] if not is_gather and at < len(server.calls["start"]) else ended
            told = own or {"start": sent, "ended": sent + SEND_S}
            op = "recv" if is_gather else "send"
            rows.append({**CALL, "op": op, "peer": worker.who.rank, "seq": -1, "step": -1, "by_cpp": False, **told})
            rows[-1] |= {"wait": rows[-1]["ended"] - rows[-1]["start"], "phase": "other", "wait_phase": "other"}
    ops = {"gather": "send", "broadcast": "recv"}
    exchanged = [
        replace(
            one,
            calls={
                **one.calls,
                "op": np.array([ops[op] for op in one.calls["op"]], dtype=object),
                "peer": np.zeros_like(one.calls["peer"]),
                "seq": np.full_like(one.calls["seq"], -1),
            },
        )
        for one in workers
    ]
    return [replace(server, steps={}, calls=columns(rows)), *exchanged]


def test_a_server_that_is_sent_to_and_sends_back_is_named() -> None:
    found = study(by_sends(server_job(0.006)), 100)

    verdict = judge(found, named(found))

    assert (verdict.state, verdict.ranks) == ("stands out", (0,)), verdict.sentence
    assert "all others wait for work that only rank 0 does, before send" in verdict.sentence


def test_a_slow_worker_is_named_and_not_the_rank_that_waits_for_it() -> None:
    verdict = verdict_on(server_job(0.001, 0.006))

    assert (verdict.state, verdict.ranks) == ("stands out", (3,)), verdict.sentence


def test_a_server_that_updates_in_no_time_is_not_named() -> None:
    verdict = verdict_on(server_job(0.001))

    assert verdict.ranks == (), verdict.sentence


def test_that_ranks_stand_still_for_data_on_their_way_is_said_where_it_is_a_good_part_of_the_time() -> None:
    often, seldom = verdict_on(server_job(0.001, send_s=0.010)), verdict_on(server_job(0.001))

    assert re.search(r"ranks stand still for data on their way (2[5-9]|3[0-9]) % of the time", often.sentence)
    assert "on their way" not in seldom.sentence
