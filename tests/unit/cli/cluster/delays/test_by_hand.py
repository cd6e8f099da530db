"""Handmade timelines, with answers computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from probe_cli.cluster.delays.analysis import Analysis, analyse
from probe_cli.cluster.delays.rows import CALLS, STEPS, RankRows, Who

Row = tuple[int, str, int, str, int, float, float, float]  # step, group, seq, op, peer, start, ended, wait


def rank(
    number: int,
    rows: Sequence[Row],
    ends: Sequence[float],
    *,
    host: str = "a",
    uncertainty: float = 0.0,
    by_cpp: bool = False,
) -> RankRows:
    """Steps 0, 1, … end at `ends`; the first begins at 0."""
    names = ("step", "group", "seq", "op", "peer", "start", "ended", "wait")
    calls = {name: np.array([row[at] for row in rows]) for at, name in enumerate(names)}
    calls |= {"phase": np.array([""] * len(rows)), "by_cpp": np.full(len(rows), by_cpp)}
    calls["on_device"] = np.zeros(len(rows), dtype=bool)
    nothing = np.zeros(len(ends))
    steps = {name: nothing for name in STEPS}
    steps |= {"number": np.arange(len(ends)), "ended": np.array(ends), "duration": np.diff(ends, prepend=0.0)}
    return RankRows(Who(number, host, number), steps, {name: calls[name] for name in CALLS}, {}, 0.0, uncertainty)


def waits(step: int, group: str, starts: Sequence[float], end: float, seq: int | None = None) -> list[Row]:
    """One collective of each rank that starts it."""
    number = step if seq is None else seq
    return [(step, group, number, "all_reduce", -1, start, end, end - start) for start in starts]


def test_a_wait_is_charged_to_whom_the_last_one_waited_for() -> None:
    # In every second: rank 2 comes to {1, 2} at 0.6, for which 1 has waited since 0.2; so 1 comes to {0, 1} at 0.7, for
    # which 0 has waited since 0.1. Of these 0.6 s, 0.1 are 1's own before it waited and 0.1 after, and 0.4 are 2's.
    zero, one, two = [], [], []
    for step in range(8):
        first = waits(step, "right", [step + 0.2, step + 0.6], step + 0.6)
        second = waits(step, "left", [step + 0.1, step + 0.7], step + 0.7)
        zero.append(second[0])
        one += [first[0], second[1]]
        two.append(first[1])
    ends = [float(step + 1) for step in range(8)]

    found = analyse([rank(0, zero, ends), rank(1, one, ends), rank(2, two, ends)], num_steps=8)

    assert list(found.steps) == [1, 2, 3, 4, 5, 6]
    assert found.covered == 1.0
    assert found.waited.mean(axis=1) == pytest.approx([0.6, 0.4, 0.0], abs=1e-6)
    assert found.own.mean(axis=1) == pytest.approx([0.4, 0.6, 1.0], abs=1e-6)
    assert found.charged.mean(axis=1) == pytest.approx([0.0, 0.2, 0.8], abs=1e-6)
    assert found.unknown_s == pytest.approx(0.0, abs=1e-6)
    biggest = found.charges[0]
    assert (biggest.rank, str(biggest.slot)) == (2, "before all_reduce 0 of group right")
    assert biggest.seconds == pytest.approx(6 * 0.8, abs=1e-6)


def late_by(seconds: float, uncertainty: float, *, by_cpp: bool = False) -> Analysis:
    """Two hosts; rank 1 comes that much later to the one collective of each step."""
    rows = [waits(step, "world", [step + 0.5, step + 0.5 + seconds], step + 0.5 + seconds) for step in range(8)]
    ends = [float(step + 1) for step in range(8)]
    return analyse(
        [
            rank(0, [row[0] for row in rows], ends, host="a", uncertainty=uncertainty, by_cpp=by_cpp),
            rank(1, [row[1] for row in rows], ends, host="b", uncertainty=uncertainty, by_cpp=by_cpp),
        ],
        num_steps=8,
    )


def test_waits_shorter_than_the_clock_uncertainty_are_charged_to_no_rank() -> None:
    known, unknown = late_by(0.2, 0.05), late_by(0.2, 0.15)

    assert known.charged.sum() == pytest.approx(6 * 0.2, abs=1e-6)
    assert known.unknown_s == pytest.approx(0.0, abs=1e-6)
    assert unknown.charged.sum() == 0.0
    assert unknown.unknown_s == pytest.approx(6 * 0.2, abs=1e-6)


def test_waits_of_cpp_are_seen_by_the_rank_that_came_last() -> None:
    found = late_by(0.2, 0.0, by_cpp=True)

    assert found.waited.mean(axis=1) == pytest.approx([0.2, 0.0], abs=1e-6)
    assert found.candidates[0].ranks == (1,)
    assert found.candidates[0].seconds_a_step == pytest.approx(0.2, abs=0.01)


def test_a_clock_less_certain_than_the_difference_names_no_rank() -> None:
    assert all(cost.low < 0.05 for cost in late_by(0.2, 0.15, by_cpp=True).candidates)


def test_a_collective_of_which_a_rank_is_missing_is_not_covered() -> None:
    rows = [waits(step, "world", [step + 0.5, step + 0.6, step + 0.7], step + 0.7) for step in range(8)]
    ends = [float(step + 1) for step in range(8)]
    without = [row for row in rows if row[0][0] != 4]
    ranks = [rank(0, [row[0] for row in rows], ends), rank(1, [row[1] for row in rows], ends)]

    found = analyse([*ranks, rank(2, [row[2] for row in without], ends)], num_steps=8)

    assert found.covered == pytest.approx(5 * 3 / (5 * 3 + 2))
    assert found.unknown_s == pytest.approx(0.2 + 0.1, abs=1e-6)


def test_ranks_without_steps_in_common_give_an_empty_analysis() -> None:
    rows = [waits(step, "world", [step + 0.5], step + 0.7)[0] for step in range(8)]

    found = analyse([rank(0, rows, [1.0, 2.0]), rank(1, [], [])], num_steps=8)

    assert len(found.steps) == 0
    assert not found.candidates
    assert found.cost_of([0]).share == 0.0
    assert found.total().share == 0.0


def test_long_calls_that_have_two_rows_are_one_call() -> None:
    rows = [waits(step, "world", [step + 0.1, step + 0.6], step + 0.6) for step in range(8)]
    ends = [float(step + 1) for step in range(8)]
    waiting: Row = (4, "world", 4, "all_reduce", -1, 4.1, 4.3, float("nan"))

    ranks = [rank(0, [*(row[0] for row in rows), waiting], ends), rank(1, [row[1] for row in rows], ends)]
    found = analyse(ranks, num_steps=8)

    assert found.covered == 1.0
    assert found.waited[0] == pytest.approx(np.full(6, 0.5), abs=1e-6)


def test_groups_of_one_name_are_told_apart_by_their_members() -> None:
    rows = [waits(step, "split", [step + 0.1 * number for number in range(4)], step + 0.5) for step in range(8)]
    ends = [float(step + 1) for step in range(8)]
    members = [{"split": (0, 1)}, {"split": (0, 1)}, {"split": (2, 3)}, {"split": (2, 3)}]
    ranks = [rank(number, [row[number] for row in rows], ends) for number in range(4)]
    ranks = [
        RankRows(own.who, own.steps, own.calls, own.roles, own.offset, own.uncertainty, known)
        for own, known in zip(ranks, members, strict=True)
    ]

    found = analyse(ranks, num_steps=8)

    assert found.waited.mean(axis=1) == pytest.approx([0.1, 0.0, 0.1, 0.0], abs=1e-6)


def test_the_members_of_a_group_that_one_rank_does_not_tell_are_known_from_the_others() -> None:
    rows = [waits(step, "world", [step + 0.1, step + 0.3], step + 0.3) for step in range(8)]
    ends = [float(step + 1) for step in range(8)]
    silent, telling = (rank(number, [row[number] for row in rows], ends) for number in range(2))

    found = analyse([silent, replace(telling, members={"world": (0, 1)})], num_steps=8)

    assert found.covered == 1.0
    assert found.waited.mean(axis=1) == pytest.approx([0.2, 0.0], abs=1e-6)


def test_steps_that_are_numbered_differently_are_aligned_by_their_collectives() -> None:
    rows = [waits(step, "world", [step + 0.1, step + 0.6], step + 0.6) for step in range(12)]
    ends = [float(step + 1) for step in range(12)]
    one = rank(1, [(row[1][0] + 40, *row[1][1:]) for row in rows], ends)
    one.steps["number"][:] += 40  # type: ignore[index]

    found = analyse([rank(0, [row[0] for row in rows], ends), one], num_steps=12)

    assert len(found.steps) == 10
    assert found.waited[0] == pytest.approx(np.full(10, 0.5), abs=1e-6)


def test_a_receive_may_be_in_the_step_before_that_of_its_send() -> None:
    """Workers of a parameter server end their step with new weights, which the server sends at the begin of its next
    one. In every 5th step it saves a checkpoint before that."""
    num, soon = 20, 1e-4
    server: list[Row] = []
    workers: dict[int, list[Row]] = {1: [], 2: []}
    ends: list[float] = []
    ends_of_workers: list[float] = []
    begins = 0.0
    for step in range(num):
        sent = begins + 0.05
        begins_next = sent + 2 * soon + (0.4 if step % 5 == 4 else 0.0)
        for worker, rows in workers.items():
            server.append((step, "world", -1, "send", worker, begins, begins + soon, soon))
            server.append((step, "world", -1, "recv", worker, begins + soon, sent + soon, sent - begins))
            rows.append((step, "world", -1, "send", 0, sent, sent + soon, soon))
            rows.append((step, "world", -1, "recv", 0, sent + soon, begins_next + soon, begins_next - sent))
        ends.append(sent + 2 * soon)
        ends_of_workers.append(begins_next + 2 * soon)
        begins = begins_next
    server.sort(key=lambda row: row[5])

    found = analyse(
        [rank(0, server, ends), *(rank(number, rows, ends_of_workers) for number, rows in workers.items())],
        num_steps=num,
    )

    saves = sum(step % 5 == 4 for step in found.steps)
    assert found.charged[0].sum() == pytest.approx(2 * 0.4 * saves, rel=0.01)
    assert found.transfer.sum() < 0.02 * found.time_s
