"""The peer of each send and receive, and the phases in which a call is made and waited for, in real jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import PROGRAM, START_S, Job, start_job

pytestmark = pytest.mark.torch

RANKS = range(3)
FINDING_RANKS = Path(__file__).parents[3] / "docs" / "finding-ranks.md"
#: How late rank 0 is before each call in a phase.
LATE_S = 0.01
PHASES = ("data", "forward", "backward", "optimizer", "evaluation", "generation", "other")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    program = PROGRAM.with_name("peers_and_phases.py")
    with start_job(tmp_path_factory.mktemp("job"), "", program=program, ranks=len(RANKS)) as job:
        ddp = job.done(0)["names"]["ddp"]
        for rank in RANKS:
            came = f"FROM python.collectives WHERE \"group\" = '{ddp}'"
            job.until(lambda came=came, rank=rank: job.rows(came, rank), START_S)
        yield job


@pytest.mark.parametrize("rank", RANKS)
def test_numbers_are_those_of_a_job_that_is_not_recorded(job: Job, rank: int) -> None:
    told = job.done(rank)

    assert told["with"] == told["without"]


def test_each_send_has_its_receive_on_the_rank_that_is_its_peer(job: Job) -> None:
    sends = "SELECT rank, peer, \"group\", count(*), sum(bytes) FROM python.collectives WHERE op = 'send' GROUP BY ALL"
    receives = sends.replace("rank, peer", "peer, rank").replace("send", "recv")

    sent, received = sorted(job.rows(sends)), sorted(job.rows(receives))

    assert sent == received
    # Six to its pair: three tensors, and an object with its size. Activations of two schedules, and one in a ring.
    counts = {(source, target, group): count for source, target, group, count, _ in sent}
    pair = next(group for source, target, group in counts if group != "0")
    assert counts[1, 2, pair] == 5
    assert counts[2, 1, pair] == 1
    assert counts[2, 0, "0"] == 1
    assert counts[0, 1, "0"] > counts[1, 0, "0"] >= 2 * 4 * 3


def test_a_receive_from_any_source_learns_its_peer_and_collectives_have_none(job: Job) -> None:
    received = "SELECT peer, count(*) FROM python.collectives WHERE op = 'recv' AND \"group\" != '0' GROUP BY peer"
    others = "SELECT DISTINCT peer FROM python.collectives WHERE op NOT IN ('send', 'recv')"

    assert job.rows(received, 2) == [[1, 5]]
    assert job.rows(others) == [[None]]


@pytest.mark.parametrize("name", PHASES)
def test_a_call_has_the_phase_that_it_is_made_in(job: Job, name: str) -> None:
    group = job.done(0)["names"][name]

    found = job.rows(
        f"SELECT phase, wait_phase, count(*) FROM python.collectives WHERE \"group\" = '{group}' AND step > "
        "(SELECT min(step) FROM python.steps) GROUP BY ALL"
    )

    assert [row[:2] for row in found] == [[name, name]]


def test_a_call_in_backward_with_a_later_wait_has_both_phases(job: Job) -> None:
    group = job.done(0)["names"]["asynchronous"]

    found = job.rows(
        f"SELECT DISTINCT phase, wait_phase FROM python.collectives WHERE \"group\" = '{group}' AND wait IS NOT NULL"
        " AND step > (SELECT min(step) FROM python.steps)"
    )

    assert found == [["backward", "other"]]


def test_a_call_on_another_thread_is_in_no_phase(job: Job) -> None:
    group = job.done(0)["names"]["beside"]

    found = job.rows(f"SELECT DISTINCT phase, wait_phase FROM python.collectives WHERE \"group\" = '{group}'")

    assert found == [[None, None]]


def test_waits_lie_within_their_phase_of_the_step(job: Job) -> None:
    names = job.done(0)["names"]
    groups = ", ".join(f"'{names[name]}'" for name in (*PHASES, "asynchronous"))
    for rank in RANKS:
        rows = job.rows(
            "WITH phases AS (SELECT step, ts AS ended, duration AS lasted, data_wait AS data, forward, backward,"
            " optimizer, evaluation, generation, other FROM python.steps), lengths AS (UNPIVOT phases ON data, forward,"
            " backward, optimizer, evaluation, generation, other INTO NAME name VALUE length)"
            " SELECT lengths.step, name, any_value(length), sum(wait) FROM lengths JOIN python.collectives AS calls"
            " ON calls.ts BETWEEN ended - to_microseconds((lasted * 1e6)::BIGINT) AND ended AND wait_phase = name"
            f' WHERE "group" IN ({groups}) GROUP BY ALL',
            rank,
        )
        assert {row[1] for row in rows} == set(PHASES)
        assert all(waited <= length + 1e-4 for _, _, length, waited in rows), rows
        if rank:  # rank 0 is late before each
            short = [row for row in rows if row[3] < LATE_S / 2]
            assert len(short) <= len(rows) // 10, short


def test_calls_by_cpp_have_the_phase_and_step_of_their_time(job: Job) -> None:
    group = job.done(0)["names"]["ddp"]

    found = job.rows(
        f"SELECT DISTINCT phase, seen_by FROM python.collectives WHERE \"group\" = '{group}' AND op = 'all_reduce'",
        0,
    )
    # A host that is busy between two readings of its clocks leaves them apart by as much.
    (num_calls, num_apart), *_ = job.rows(
        "SELECT count(*), count(*) FILTER (start NOT BETWEEN ended - to_microseconds((lasted * 1e6)::BIGINT + 2000)"
        " AND ended + INTERVAL 2 MILLISECONDS)"
        " FROM python.collectives JOIN (SELECT step, ts AS ended, duration AS lasted FROM python.steps) USING (step)"
        f" WHERE \"group\" = '{group}' AND op = 'all_reduce'",  # those of the constructor are in a pause before a step
        0,
    )

    assert found == [["backward", "flight recorder"]]
    assert num_calls >= 4
    assert num_apart == 0


@pytest.mark.parametrize("sql", re.findall(r"^```sql\n(.*?)^```", FINDING_RANKS.read_text(), re.M | re.S))
def test_queries_of_the_docs_find_what_ranks_are_in_their_job(job: Job, sql: str) -> None:
    statement = sql.strip().rstrip(";")

    if "python.roles" in sql:
        job.until(lambda: {row[0] for row in job.rows(statement)} == {0, 1, 2})
    else:
        rows = job.rows(statement)
        assert ["0", "default_pg", "0-2"] in rows
        assert any(row[2] == "1, 2" for row in rows)


def test_stages_are_roles_of_the_targets_too(job: Job) -> None:
    job.until(lambda: all("stage" in target.roles for target in job.directory.targets()))

    assert [target.roles for target in job.directory.targets()] == [{"pp": rank, "stage": rank} for rank in RANKS]


def test_nothing_of_ours_failed(job: Job) -> None:
    assert job.rows("SELECT message FROM probe.errors") == []
