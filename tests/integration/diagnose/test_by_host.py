"""Ranks of one host are asked the statements of all rules together, and tell what each would have told by itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.commands import environment, probe
from support.recorded_job import tables_of
from support.targets import forked_ranks
from support.targets import target as program
from support.waiting import until

from benchmarks.simulated import add_target, addresses_of, serving
from probe_agent.recorder.hooks.collectives import Collectives
from probe_agent.recorder.steps.ends import Steps
from probe_cli.client import Client
from probe_cli.client.loop import run
from probe_cli.cluster.by_host import ByHost
from probe_cli.cluster.fanout import ask
from probe_cli.diagnose import question_of, rules
from probe_cli.diagnose.rule import Rule
from probe_cli.diagnose.statements import rows_in
from probe_cli.endpoint import Endpoint, parse_endpoint
from probe_cli.session import Session

NUM_RANKS = 4
TIMEOUT_S = 30.0
#: What is another one in a later answer: seconds since something, the load of the host.
OF_THE_MOMENT = {"since", "pressure"}
BROKEN = Rule("broken", "speed", "?", "SELECT 'broken' AS it", lambda asked, limits: ())
RULES = [rule for rule in rules().values() if not rule.is_live and not rule.per_host]
#: Those that do not ask for the load of the GPU beside.
CALM = [rule for rule in RULES if not rule.on_host]
#: What recorders answer; of GPUs, each rank is asked for its own.
LIVE = [rule for rule in rules().values() if rule.is_live and not rule.on_host and "gpu." not in rule.sql]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The host server of four ranks that have recorded unlike things: all, a few steps, no collective, nothing."""
    base = tmp_path_factory.mktemp("host")
    of_rank: list[Sequence[Any]] = [
        tables_of(0),
        [(Steps, rows[:3]) for table, rows in tables_of(1) if table is Steps],
        [(table, rows) for table, rows in tables_of(3) if table is not Collectives],
        [],
    ]
    for rank, tables in enumerate(of_rank):
        add_target(base / "0" / "0", "host0", 920_000 + rank, rank, NUM_RANKS, tables)
    addresses = addresses_of(1)
    with serving(Path(base), addresses):
        yield addresses[0]


def told(endpoints: Sequence[Endpoint], question: Any) -> dict[Endpoint, Any]:
    answers = run(ask(endpoints, question, timeout_s=4 * TIMEOUT_S, inject=False, remark=print))
    assert not answers.unanswered
    return dict(answers.answered)


def same(value: Any, other: Any) -> bool:
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(
            (name in OF_THE_MOMENT and None not in (value[name], other[name])) or same(value[name], other[name])
            for name in value
        )
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, float) and isinstance(other, float):
        return value == pytest.approx(other, rel=1e-9, nan_ok=True)
    return bool(value == other)


def test_each_rank_tells_the_same_as_by_itself(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_INSECURE", "1")
    found = Session([parse_endpoint(address)], everyone=True).list_ranks()
    targets = {endpoint: one.info for endpoint, one in found.answered}
    assert sorted(one.rank or 0 for one in targets.values()) == list(range(NUM_RANKS))
    by_host = ByHost({rule.name: rule.sql for rule in RULES}, TIMEOUT_S, targets)

    async def rows(client: Client) -> Any:
        return rows_in(await by_host.told(client))

    together = told(list(targets), rows)
    alone = told(list(targets), question_of(RULES, TIMEOUT_S))

    for endpoint, target in targets.items():
        assert set(together[endpoint]) == {rule.name for rule in RULES}, f"rank {target.rank}: {together[endpoint]}"
        for rule in RULES:
            one, other = together[endpoint][rule.name], alone[endpoint].rows[rule.name]
            assert same(one, other), f"{rule.name} of rank {target.rank}: {one}, {other}"
    assert together[next(iter(targets))]["loss-not-finite"], "no rule has a row: the job has recorded nothing"


def test_ranks_are_not_asked_again_what_the_host_has_answered(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_INSECURE", "1")
    found = Session([parse_endpoint(address)], everyone=True).list_ranks()
    targets = {endpoint: one.info for endpoint, one in found.answered}
    asked: list[tuple[Endpoint, str]] = []
    send = Client.send

    async def counted(self: Client, kind: Any, method: str, path: str, body: Any = None) -> Any:
        asked.append((self.endpoint, body.sql))
        if "'broken'" in body.sql and "asked.rank" in body.sql:
            body = type(body)("SELECT nothing")
        return await send(self, kind, method, path, body)

    monkeypatch.setattr(Client, "send", counted)
    told(list(targets), question_of(CALM, TIMEOUT_S, targets=targets))
    assert asked
    assert not [sql for at, sql in asked if at in targets]

    asked.clear()
    evidence = told(list(targets), question_of([*CALM, BROKEN], TIMEOUT_S, targets=targets))
    assert sorted(str(at) for at, _ in asked if at in targets) == sorted(map(str, targets)), "what a host does not tell"
    assert [one.rows["broken"] for one in evidence.values()] == [[{"it": "broken"}]] * NUM_RANKS


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Endpoint, Any]]:
    """The targets of a job that trains on two ranks of this host."""
    folder = tmp_path_factory.mktemp("living")
    (folder / "case").write_text("nobody")
    with forked_ranks(2, program("straggling.py", folder), folder, environment()) as process:
        until(lambda: len(list(folder.glob("ready-*"))) == 2, 60, (folder / "output").read_text, process)
        pid = (folder / "ready-0").read_text()
        assert probe(pid, "--all", "ranks").returncode == 0

        def ranks() -> dict[Endpoint, Any]:
            found = Session([parse_endpoint(pid)], everyone=True).list_ranks()
            return {endpoint: one.info for endpoint, one in found.answered}

        # Which job they are of is known a moment after the attach.
        until(lambda: len([one for one in ranks().values() if one.job]) == 2, 60)
        yield ranks()
        (folder / "stop").touch()


@pytest.mark.torch
def test_recorders_of_a_host_are_asked_together(living: dict[Endpoint, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Endpoint] = []
    send = Client.send

    async def counted(self: Client, *request: Any) -> Any:
        asked.append(self.endpoint)
        return await send(self, *request)

    alone = told(list(living), question_of(LIVE, TIMEOUT_S))
    monkeypatch.setattr(Client, "send", counted)
    together = told(list(living), question_of(LIVE, TIMEOUT_S, targets=living))

    assert not set(asked) & set(living), "a rank was asked by itself"
    names = {rule.name for rule in LIVE}
    with_rows = {name for one in alone.values() for name in names if one.rows[name]}
    assert len(with_rows) > len(names) / 2
    for endpoint in living:
        one, other = together[endpoint], alone[endpoint]
        assert set(one.rows) == names, one.failed
        for name in names:
            if one.rows[name] and other.rows[name]:  # a call that runs just now is told only while it runs
                assert {*map(tuple, one.rows[name])} == {*map(tuple, other.rows[name])}, name
            assert {row.get("rank", living[endpoint].rank) for row in one.rows[name]} <= {living[endpoint].rank}, name


@pytest.mark.torch
def test_a_rank_that_does_not_answer_leaves_the_others_theirs(living: dict[Endpoint, Any]) -> None:
    answers, silent = living
    os.kill(living[silent].pid, signal.SIGSTOP)
    try:
        evidence = told(list(living), question_of(LIVE, 2.0, targets=living))
    finally:
        os.kill(living[silent].pid, signal.SIGCONT)

    names = {rule.name for rule in LIVE}
    assert set(evidence[answers].rows) == names, evidence[answers].failed
    assert not evidence[silent].rows
    assert set(evidence[silent].failed) == names
    assert all("stopped" in why for why in evidence[silent].failed.values()), evidence[silent].failed
