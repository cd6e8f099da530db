"""Where chains of waits end, on simulated jobs in which a fault was planted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe_cli.cluster.hang.calls import Group
from probe_cli.cluster.hang.chain import Cause, stops

from .simulator import Op, grid, stand_still

SHAPES = [(2, 1, 1), (4, 1, 1), (2, 2, 1), (1, 4, 1), (1, 1, 4), (2, 2, 2), (4, 2, 2), (1, 2, 4)]
STEPS = 4


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ahead", [1, 12])
def test_a_job_that_has_ended_has_no_open_call(shape: tuple[int, int, int], ahead: int) -> None:
    assert stops(stand_still(grid(*shape, STEPS), ahead=ahead)) == []


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(SHAPES), st.integers(1, 12), st.booleans(), st.data())
def test_the_rank_that_has_stopped_is_the_end_of_every_chain(
    shape: tuple[int, int, int], ahead: int, tells_started: bool, data: st.DataObject
) -> None:
    programs = grid(*shape, STEPS)
    rank = data.draw(st.sampled_from(sorted(programs)))
    place = data.draw(st.integers(0, len(programs[rank]) - 1))

    found = stops(stand_still(programs, ahead=ahead, cpu_stops={rank: place}, tells_started=tells_started))

    assert {stop.ranks for stop in found} == {(rank,)}
    assert {stop.cause for stop in found} <= {Cause.ABSENT, Cause.NO_PEER}
    assert set().union(*(stop.held_up for stop in found)) == set(programs) - {rank}


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SHAPES), st.data())
def test_of_two_ranks_that_have_stopped_both_are_named(shape: tuple[int, int, int], data: st.DataObject) -> None:
    programs = grid(*shape, STEPS)
    first, second = data.draw(st.lists(st.sampled_from(sorted(programs)), min_size=2, max_size=2, unique=True))
    place = (STEPS - 1) * len(programs[first]) // STEPS

    seen = stand_still(programs, cpu_stops={first: place, second: place})
    found = stops(seen)

    assert {rank for stop in found for rank in stop.ranks} <= {first, second}
    assert bool(found) == any(not call.is_over for rank in seen.values() for call in rank.calls)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([shape for shape in SHAPES if shape[2] == 1]), st.data())
def test_a_device_that_has_stopped_is_named_where_the_backend_tells_what_has_started(
    shape: tuple[int, int, int], data: st.DataObject
) -> None:
    programs = grid(*shape, STEPS)
    rank = data.draw(st.sampled_from(sorted(programs)))
    place = data.draw(st.integers(0, len(programs[rank]) - 1))

    found = stops(stand_still(programs, ahead=12, device_stops={rank: place}, tells_started=True))

    assert [(stop.cause, stop.ranks) for stop in found] == [(Cause.DEVICE, (rank,))]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([shape for shape in SHAPES if shape[2] == 1]), st.data())
def test_without_that_it_is_among_the_ranks_of_the_group_in_which_all_have_come(
    shape: tuple[int, int, int], data: st.DataObject
) -> None:
    programs = grid(*shape, STEPS)
    rank = data.draw(st.sampled_from(sorted(programs)))
    place = data.draw(st.integers(0, len(programs[rank]) - 1))

    found = stops(stand_still(programs, ahead=100, device_stops={rank: place}))

    assert [stop.cause for stop in found] == [Cause.NETWORK]
    assert rank in found[0].wait.inside


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SHAPES), st.integers(1, 6), st.booleans(), st.data())
def test_other_sizes_and_operations_are_a_mismatch(
    shape: tuple[int, int, int], ahead: int, tells_started: bool, data: st.DataObject
) -> None:
    programs = grid(*shape, STEPS)
    rank = data.draw(st.sampled_from(sorted(programs)))
    places = [index for index, op in enumerate(programs[rank]) if op.peer is None and len(op.group.ranks) > 1]
    place = data.draw(st.sampled_from(places))
    op = programs[rank][place]
    programs[rank][place] = data.draw(st.sampled_from([replace(op, size=op.size + 1), replace(op, op="broadcast")]))

    found = stops(stand_still(programs, ahead=ahead, tells_started=tells_started))

    assert {stop.cause for stop in found} == {Cause.MISMATCH}
    expected = (rank,) if len(op.group.ranks) > 2 else ()
    assert (found[0].ranks, found[0].wait.group) == (expected, op.group)


@pytest.mark.parametrize("ahead", [1, 2, 8])
def test_two_groups_in_another_order_are_a_cycle(ahead: int) -> None:
    a, b, everyone = Group("a", (0, 1)), Group("b", (0, 1)), Group("0", (0, 1, 2, 3))
    programs = {rank: [Op(everyone), Op(everyone)] for rank in everyone.ranks}
    programs[0][1:1] = [Op(a), Op(b)]
    programs[1][1:1] = [Op(b), Op(a)]

    found = stops(stand_still(programs, ahead=ahead))

    assert [(stop.cause, stop.ranks) for stop in found] == [(Cause.CYCLE, (0, 1))]
    assert {link.group for link in found[0].links} == {a, b}
    assert set(found[0].held_up) == {2, 3}


def test_two_ranks_that_both_send_are_a_cycle() -> None:
    group = Group("pp", (0, 1))
    programs = {0: [Op(group, "send", peer=1)], 1: [Op(group, "send", peer=0)]}

    found = stops(stand_still(programs))

    assert [(stop.cause, stop.ranks) for stop in found] == [(Cause.CYCLE, (0, 1))]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SHAPES), st.data())
def test_a_rank_without_a_dump_is_blamed_only_where_nobody_else_is(
    shape: tuple[int, int, int], data: st.DataObject
) -> None:
    programs = grid(*shape, STEPS)
    rank = data.draw(st.sampled_from(sorted(programs)))
    seen = stand_still(programs, cpu_stops={rank: data.draw(st.integers(0, len(programs[rank]) - 1))})
    missing = data.draw(st.sampled_from(sorted(seen)))
    del seen[missing]

    found = stops(seen)

    if missing == rank:
        assert {(stop.cause, stop.ranks) for stop in found} <= {(Cause.UNSEEN, (rank,))}
    else:
        assert {stop.ranks for stop in found} <= {(rank,), (missing,)}
        assert {stop.cause for stop in found if stop.ranks == (missing,)} <= {Cause.UNSEEN}
