"""Dumps of Flight Recorder in the shapes that torch writes them in, each with a fault that is known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe_cli.cluster.hang.calls import Group, Rank
from probe_cli.cluster.hang.chain import Cause, Stop, stops
from probe_cli.cluster.hang.entries import as_ranks
from probe_cli.cluster.hang.text import evidence, sentence

from .flight_recorder import Dump, dumps_of
from .simulator import Op, grid, stand_still

#: Data, tensor and pipeline parallel ranks; most jobs have 16.
SHAPES = [(4, 1, 1), (2, 2, 1), (16, 1, 1), (4, 4, 1), (4, 2, 2), (2, 2, 4), (1, 4, 4)]
#: The ring keeps all calls under way: 12, each in a batch.
SHAPES_OF_DUMP: list[dict[str, Any]] = [{}, {"only_active": True}, {"ring": 25}, {"is_batched": False}]
STEPS = 4


def read(dumps: Mapping[int, Dump]) -> dict[int, Rank]:
    """Read dumps that have gone through a file."""
    files = {rank: json.loads(json.dumps(dump)) for rank, dump in dumps.items()}
    return as_ranks({rank: {"entries": [], **dump} for rank, dump in files.items()})


def blamed(dumps: Mapping[int, Dump]) -> set[tuple[Cause, tuple[int, ...]]]:
    ranks = read(dumps)
    found = stops(ranks)
    assert all(sentence(stop, ranks) and evidence(stop, ranks) is not None for stop in found)
    return {(stop.cause, stop.ranks) for stop in found}


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(SHAPES), st.sampled_from(SHAPES_OF_DUMP), st.integers(1, 12), st.booleans(), st.data())
def test_the_rank_that_has_stopped_is_named(
    shape: tuple[int, int, int], of_dump: dict[str, Any], ahead: int, tells_started: bool, data: st.DataObject
) -> None:
    programs = grid(*shape, STEPS)
    rank = data.draw(st.sampled_from(sorted(programs)))
    place = data.draw(st.integers(len(programs[rank]) // STEPS, len(programs[rank]) - 1))

    seen = stand_still(programs, ahead=ahead, cpu_stops={rank: place}, tells_started=tells_started)
    found = blamed(dumps_of(seen, **of_dump))

    assert {ranks for _, ranks in found} == {(rank,)}
    assert {cause for cause, _ in found} <= {Cause.ABSENT, Cause.NO_PEER}


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(SHAPES), st.sampled_from(SHAPES_OF_DUMP), st.data())
def test_a_rank_with_other_sizes_operation_or_type_is_named(
    shape: tuple[int, int, int], of_dump: dict[str, Any], data: st.DataObject
) -> None:
    programs = grid(*shape, STEPS)
    rank = data.draw(st.sampled_from(sorted(programs)))
    places = [
        index
        for index, op in enumerate(programs[rank])
        if op.peer is None and len(op.group.ranks) > 2 and index >= len(programs[rank]) // STEPS
    ]
    place = data.draw(st.sampled_from(places))
    op = programs[rank][place]
    programs[rank][place] = data.draw(st.sampled_from([replace(op, size=op.size + 1), replace(op, op="broadcast")]))

    found = blamed(dumps_of(stand_still(programs), **of_dump))

    assert found == {(Cause.MISMATCH, (rank,))}


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([shape for shape in SHAPES if shape[2] == 1]), st.booleans(), st.data())
def test_a_device_that_has_stopped_is_named(
    shape: tuple[int, int, int], only_active: bool, data: st.DataObject
) -> None:
    programs = grid(*shape, STEPS)
    rank = data.draw(st.sampled_from(sorted(programs)))
    place = data.draw(st.integers(0, len(programs[rank]) - 1))

    seen = stand_still(programs, ahead=12, device_stops={rank: place}, tells_started=True)
    found = blamed(dumps_of(seen, only_active=only_active))

    assert found == {(Cause.DEVICE, (rank,))}


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(SHAPES), st.sampled_from(SHAPES_OF_DUMP), st.data())
def test_a_rank_that_left_no_dump_is_not_known(
    shape: tuple[int, int, int], of_dump: dict[str, Any], data: st.DataObject
) -> None:
    programs = grid(*shape, STEPS)
    rank = data.draw(st.sampled_from(sorted(programs)))
    seen = stand_still(programs, cpu_stops={rank: len(programs[rank]) // 2})
    dumps = dumps_of(seen, **of_dump)
    del dumps[rank]

    assert blamed(dumps) == {(Cause.UNSEEN, (rank,))}


@pytest.mark.parametrize("of_dump", SHAPES_OF_DUMP)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("ahead", [1, 12])
def test_a_job_that_has_ended_shows_no_hang(shape: tuple[int, int, int], of_dump: dict[str, Any], ahead: int) -> None:
    assert blamed(dumps_of(stand_still(grid(*shape, STEPS), ahead=ahead), **of_dump)) == set()


@pytest.mark.parametrize("of_dump", SHAPES_OF_DUMP)
def test_two_groups_in_another_order_are_a_cycle(of_dump: dict[str, Any]) -> None:
    a, b, everyone = Group("a", (3, 7)), Group("b", (3, 5, 7)), Group("0", tuple(range(16)))
    programs = {rank: [Op(everyone), Op(everyone)] for rank in everyone.ranks}
    programs[3][1:1] = [Op(a), Op(b)]
    programs[7][1:1] = [Op(b), Op(a)]
    programs[5][1:1] = [Op(b)]

    assert blamed(dumps_of(stand_still(programs), **of_dump)) == {(Cause.CYCLE, (3, 7))}


def entry(number: int, op: str, state: str = "scheduled", seq: int = 1, size: int = 4, **more: Any) -> Dump:
    """One entry of the default group."""
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": seq,
        "p2p_seq_id": seq,
        "profiling_name": f"nccl:{op}",
        "state": state,
        "input_sizes": [[size]],
        "output_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "is_p2p": op.startswith(("send", "recv")),
        "retired": False,
        **more,
    }


def dump(*entries: Dump, world_size: int = 2, **more: object) -> Dump:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world_size)))}}
    return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": list(entries), **more}


def only(dumps: Mapping[int, Dump]) -> Stop:
    found = stops(read(dumps))
    assert len(found) == 1, found
    return found[0]


def exchange(number: int, rank: int, state: str, seq: int) -> list[Dump]:
    """A batch in which two ranks each send first and receive second."""
    end: Dump = {"is_p2p": True, "input_sizes": [], "output_sizes": []}
    return [
        entry(number, f"send {rank}->{1 - rank}", seq=seq),
        entry(number + 1, f"recv {rank}<-{1 - rank}", seq=seq),
        entry(number + 2, "coalesced", state, seq, **end),
    ]


def test_a_batch_that_has_ended_is_over_though_its_parts_stay_scheduled() -> None:
    dumps = {rank: dump(*exchange(0, rank, "completed", 1)) for rank in (0, 1)}

    assert stops(read(dumps)) == []


def test_a_batch_whose_last_entry_was_left_out_is_over() -> None:
    parts = {rank: exchange(0, rank, "completed", 1)[:2] for rank in (0, 1)}
    dumps = {rank: dump(*parts[rank]) for rank in parts}

    assert stops(read(dumps)) == []


def test_two_ranks_that_both_send_in_a_batch_do_not_wait_for_each_other() -> None:
    dumps = {rank: dump(*exchange(0, rank, "completed", 1), *exchange(3, rank, "started", 2)) for rank in (0, 1)}

    assert blamed(dumps) == {(Cause.NETWORK, ())}


def test_a_batch_that_the_other_rank_has_not_made_is_waited_for() -> None:
    first = dump(*exchange(0, 0, "completed", 1), *exchange(3, 0, "scheduled", 2))

    assert blamed({0: first, 1: dump(*exchange(0, 1, "completed", 1))}) == {(Cause.NO_PEER, (1,))}


def test_numbers_of_sends_are_not_those_of_collectives() -> None:
    batch = exchange(0, 0, "completed", 1)
    dumps = {0: dump(*batch, entry(3, "all_reduce")), 1: dump(entry(0, "all_reduce"))}

    assert only(dumps).cause is Cause.NETWORK


def test_a_receive_of_another_size_than_the_send_is_a_mismatch() -> None:
    ranks = read({0: dump(entry(0, "send 0->1")), 1: dump(entry(0, "recv 1<-0", size=8))})
    found = stops(ranks)

    assert {(stop.cause, stop.ranks) for stop in found} == {(Cause.MISMATCH, ())}
    assert "ranks 0 and 1 differ in a send of group default_pg (0)" in sentence(found[0], ranks)


@pytest.mark.parametrize(
    ("op", "odd"),
    [
        ("all_reduce", {"input_dtypes": ["BFloat16"], "output_dtypes": ["BFloat16"]}),
        ("all_reduce", {"output_dtypes": ["Half"]}),
        ("all_reduce", {"output_sizes": [[8]]}),
        ("_all_gather_base", {"output_sizes": [[32]]}),
        ("_reduce_scatter_base", {"input_sizes": [[2]]}),
        ("broadcast", {"input_sizes": [[2, 2]], "output_sizes": [[2, 2]]}),
        ("gather", {"input_sizes": [[5]]}),
        ("scatter", {"output_sizes": [[5]]}),
        ("all_to_all", {"input_sizes": [[5]]}),
        ("all_reduce", {"profiling_name": "nccl:all_reduce_barrier"}),
    ],
)
def test_what_one_rank_of_four_does_otherwise_is_its_fault(op: str, odd: Dump) -> None:
    dumps = {rank: dump(entry(0, op, **(odd if rank == 2 else {})), world_size=4) for rank in range(4)}

    stop = only(dumps)

    assert (stop.cause, stop.ranks) == (Cause.MISMATCH, (2,))


@pytest.mark.parametrize(
    ("op", "root"),
    [
        ("gather", {"output_sizes": [[4]] * 4}),
        ("scatter", {"input_sizes": [[4]] * 4}),
        ("all_to_all", {"input_sizes": [[6]], "output_sizes": [[6]]}),
    ],
)
def test_what_ranks_may_do_otherwise_is_no_mismatch(op: str, root: Dump) -> None:
    plain: Dump = {"input_sizes": [], "input_dtypes": []} if op == "scatter" else {}
    plain |= {"output_sizes": [], "output_dtypes": []} if op == "gather" else {}
    dumps = {rank: dump(entry(0, op, **(root if rank == 1 else plain)), world_size=4) for rank in range(4)}

    assert only(dumps).cause is Cause.NETWORK


def test_an_all_to_all_that_loses_something_is_a_mismatch_of_which_nobody_is_the_cause() -> None:
    stop = only({rank: dump(entry(0, "all_to_all", output_sizes=[[3]])) for rank in (0, 1)})

    assert (stop.cause, stop.ranks) == (Cause.MISMATCH, ())


def test_an_uneven_all_gather_is_compared_by_its_parts() -> None:
    def parts(sizes: list[int]) -> list[Dump]:
        inner = [entry(number, "_broadcast_oop", size=size) for number, size in enumerate(sizes)]
        return [*inner, entry(len(sizes), "ALLGATHER_coalesced", input_sizes=[[]], output_sizes=[[]])]

    alike = {rank: dump(*parts([4, 6, 4]), world_size=3) for rank in range(3)}
    differ = {rank: dump(*parts([4, 6, 5 if rank == 1 else 4]), world_size=3) for rank in range(3)}

    assert only(alike).cause is Cause.NETWORK
    assert (only(differ).cause, only(differ).ranks) == (Cause.MISMATCH, (1,))


def test_ranks_that_are_still_in_what_others_have_ended_are_named() -> None:
    dumps = {
        rank: dump(entry(0, "all_reduce", "started" if rank == 3 else "completed"), world_size=4) for rank in range(4)
    }

    stop = only(dumps)

    assert (stop.cause, stop.ranks) == (Cause.LEFT_BEHIND, (3,))


def test_a_rank_without_active_calls_has_come_as_far_as_its_status_says() -> None:
    status = {"0": {"last_enqueued_collective": "7", "last_started_collective": "7", "last_completed_collective": "7"}}
    behind = {"0": {"last_enqueued_collective": 6, "last_started_collective": 6, "last_completed_collective": 6}}
    waits = dump(entry(40, "all_reduce", seq=7), world_size=3)
    come, late = dump(world_size=3, pg_status=status), dump(world_size=3, pg_status=behind)

    assert (only({0: waits, 1: come, 2: late}).cause, only({0: waits, 1: come, 2: late}).ranks) == (Cause.ABSENT, (2,))
    assert only({0: waits, 1: come, 2: come}).cause is Cause.LEFT_BEHIND


def test_a_status_that_also_counts_sends_says_nothing_of_collectives() -> None:
    status = {"0": {"last_enqueued_collective": 9, "last_started_collective": -1, "last_completed_collective": 9}}
    sender = dump(*exchange(0, 1, "completed", 9), pg_status=status)

    stop = only({0: dump(entry(0, "all_reduce", seq=2)), 1: sender})

    assert (stop.cause, stop.ranks) == (Cause.ABSENT, (1,))


def test_calls_of_torch_2_2_have_one_number_and_no_group() -> None:
    def old(number: int, state: str) -> Dump:
        return {"seq_id": number, "pg_id": 0, "profiling_name": "nccl:all_reduce", "state": state, "input_sizes": [[4]]}

    dumps = {rank: {"entries": [old(1, "completed")]} for rank in range(4)}
    for rank in (0, 1, 3):
        dumps[rank]["entries"].append(old(2, "scheduled"))

    assert blamed(dumps) == {(Cause.ABSENT, (2,))}


def test_a_group_that_one_dump_does_not_describe_is_known_from_another() -> None:
    bare = dump(entry(0, "all_reduce"), world_size=3)
    bare["pg_config"] = {}

    stop = only({0: dump(entry(0, "all_reduce"), world_size=3), 1: bare, 2: dump(world_size=3)})

    assert (stop.cause, stop.ranks, stop.wait.inside) == (Cause.ABSENT, (2,), (0, 1))
