"""python.collectives: the patches of ProcessGroup's methods, in a group of one."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from support.waiting import until

from probe_agent.recorder.hooks import collectives
from probe_agent.recorder.ring.table import NULL_FLOAT
from probe_agent.recorder.steps import collective_rows


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def source(recording, monkeypatch) -> Iterator[collectives.Source]:
    """A recorder with no other source than this one."""
    with recording() as it:
        source = collectives.Source(it.recorder)
        source.start()
        source.rows = lambda: it.rows("python.collectives")
        yield source
        source.stop()


def patchable() -> dict[str, object]:
    c10d = torch._C._distributed_c10d
    packets = [getattr(torch.ops._c10d_functional, name) for name in (*collectives.OPERATORS, "wait_tensor")]
    return {
        f"{owner.__name__}.{name}": value
        for owner in (c10d.ProcessGroup, c10d.Work, *packets, *(packet.default for packet in packets))
        for name, value in vars(owner).items()
        if owner.__class__ is not torch._ops.OpOverloadPacket or name == "_op"
    }


def test_every_patched_name_is_what_it_was_after_detach(recording):
    before = patchable()

    with recording() as it:
        source = collectives.Source(it.recorder)
        source.start()
        source.tick()
        meanwhile = patchable()
        source.stop()

    changed = {name for name in before if meanwhile[name] is not before[name]}
    assert {"ProcessGroup.allreduce", "ProcessGroup.barrier", "Work.wait", "all_reduce._op"} <= changed
    assert patchable().keys() == before.keys()
    assert all(after is before[name] for name, after in patchable().items())


def test_a_patch_of_another_library_stays(recording, monkeypatch):
    work = torch._C._distributed_c10d.Work
    original = work.__dict__["wait"]

    with recording() as it:
        source = collectives.Source(it.recorder)
        source.start()
        ours = work.wait
        work.wait = theirs = lambda *args: ours(*args)
        source.stop()
        left = work.__dict__["wait"]
        work.wait = original

    assert left is theirs


def test_a_bound_method_that_the_job_kept_notes_nothing_after_detach(group, recording):
    with recording() as it:
        source = collectives.Source(it.recorder)
        source.start()
        kept = group.allreduce
        source.stop()

    kept([torch.ones(2)]).wait()

    assert not source._calls
    assert not source._open


def test_a_call_and_its_wait_become_a_row(group, source):
    tensor = torch.ones(3, 5, dtype=torch.float64)
    reference = dist.all_reduce

    reference(tensor)
    dist.barrier()
    source.tick()

    first, second = source.rows()
    assert (first["op"], first["bytes"], first["dtype"], first["shape"]) == ("all_reduce", 120, "float64", "[3, 5]")
    assert (first["seq"], second["seq"]) == (1, 2)
    assert 0 <= first["wait"] <= first["duration"] < 10
    assert (first["state"], first["seen_by"], first["group"]) == ("completed", "python", group.group_name)
    assert first["ts"] - first["start"] == pytest.approx(first["duration"] * 1e6, abs=2)


def test_a_call_without_a_wait_is_marked_and_keeps_nothing_alive(group, source):
    tensor = torch.ones(4)
    dist.all_reduce(tensor, async_op=True)

    source.tick()

    (row,) = source.rows()
    assert (row["state"], row["duration"], row["wait"]) == ("launched", None, None)
    assert not source._open
    assert not source._rows._unfinished


def test_a_call_that_fails_is_a_row_and_fails_as_before(group, source):
    with pytest.raises(RuntimeError):
        group.broadcast(torch.ones(2), 7).wait()

    source.tick()

    assert [row["state"] for row in source.rows()] == ["failed"]


def test_a_call_that_takes_long_has_a_row_before_it_is_over(group, source, monkeypatch):
    monkeypatch.setattr(collective_rows, "LONG_NS", 0)
    work = dist.all_reduce(torch.ones(2), async_op=True)

    source.tick()
    source.tick()
    work.wait()
    source.tick()

    assert [row["state"] for row in source.rows()] == ["launched", "completed"]
    assert len({row["seq"] for row in source.rows()}) == 1


@pytest.mark.parametrize(("stands_ns", "is_read"), [(0, True), (10**18, False)])
def test_what_cpp_has_called_is_read_at_once_when_it_stands_still(group, source, monkeypatch, stands_ns, is_read):
    """It may be the last call before the job is ended."""
    monkeypatch.setattr(collective_rows, "STANDSTILL_NS", stands_ns)
    source._rows._look_at = sys.maxsize  # the last read took long
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()

    def is_there() -> bool:
        source.tick()
        return any(row["op"] == "all_reduce" and row["seen_by"] == "flight recorder" for row in source.rows())

    source.tick()
    if is_read:
        until(is_there)  # on a busy machine, torch notes that the call is over only after the first read
    else:
        assert not is_there()


@pytest.mark.parametrize("by_operator", [False, True])
def test_a_call_that_was_complete_has_no_duration_however_long_the_wait_took(source, by_operator):
    """Of an operator it is a guess that it was, from the time since the call."""
    call = collective_rows.Call(1, "all_reduce", "0", 1)
    call.overlapped, call.by_operator = True, by_operator
    call.began, call.wait, call.ended = 1_000, 2_000_000, 5_000_000

    row = source._rows._row_of(call, 6_000_000, is_over=True)

    assert (row.duration != NULL_FLOAT) is by_operator


def test_shapes_that_differ_all_the_time_do_not_fill_the_ring_with_texts(group, source, monkeypatch):
    monkeypatch.setattr(collective_rows, "MAX_SHAPES", 3)

    for length in range(1, 7):
        dist.all_reduce(torch.ones(length))
    source.tick()

    assert [row["shape"] for row in source.rows()] == ["[1]", "[2]", "[3]", None, None, None]


def test_calls_are_numbered_across_a_new_job_of_the_same_name(source):
    for _ in range(2):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(1))
        source.tick()
        dist.destroy_process_group()

    assert [row["seq"] for row in source.rows()] == [1, 2, 1, 2]


def test_sparse_tensors_are_measured_as_if_dense(group, source):
    tensor = torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (4,), check_invariants=True)

    dist.all_reduce(tensor)
    source.tick()

    row = next(row for row in source.rows() if row["seen_by"] == "python")
    assert (row["shape"], row["bytes"]) == ("[4]", 16)


@pytest.mark.parametrize("name", ["traced", "broken"])
def test_dynamo_recompiles_nothing_after_attach_and_detach(group, recording, name):
    def traced(tensor):
        tensor = tensor * 2
        dist.all_reduce(tensor)
        return tensor + 1

    def broken(tensor):
        tensor = tensor * 2
        dist.all_reduce(tensor, async_op=True).wait()
        return tensor + 1

    def counts():
        counters = torch._dynamo.utils.counters
        return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()), counters["frames"]["total"]

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile({"traced": traced, "broken": broken}[name], backend="eager")
    results = [compiled(torch.ones(5))]
    before = counts()
    with recording() as it:
        source = collectives.Source(it.recorder)
        source.start()
        results += [compiled(torch.ones(5)), compiled(torch.ones(5))]
        source.stop()
    results.append(compiled(torch.ones(5)))

    assert counts() == before
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("compiled", [False, True])
def test_operators_of_tensors_are_calls(group, source, compiled):
    def reduce(tensor):
        return functional.all_reduce(tensor * 2, "sum", group) + 1

    source.tick()
    run = torch.compile(reduce, backend="aot_eager", fullgraph=True) if compiled else reduce

    answers = [run(torch.ones(3, 5)).sum() for _ in range(3)]
    source.tick()

    assert answers == [45.0] * 3
    rows = source.rows()
    assert [(row["op"], row["bytes"], row["seq"]) for row in rows] == [("all_reduce", 60, seq) for seq in (1, 2, 3)]
    assert all(row["state"] == "completed" and row["wait"] >= 0 for row in rows)


def test_an_operator_that_fails_fails_as_before(group, source):
    source.tick()

    with pytest.raises(RuntimeError, match="no_such_group"):
        torch.ops._c10d_functional.all_reduce(torch.ones(2), "sum", "no_such_group")
    functional.wait_tensor(torch.ops._c10d_functional.all_reduce(torch.ones(2), "sum", group.group_name))
    source.tick()

    assert [row["state"] for row in source.rows()] == ["completed"]


def test_waiting_for_a_view_is_waiting_for_the_tensor(group, source, monkeypatch):
    source.tick()

    view = functional.all_reduce(torch.ones(4, 4), "sum", group).view(16)
    part = functional.all_gather_tensor(torch.ones(6), 0, group).split(2)[1]
    total = float(view.sum() + part.sum())
    functional.all_reduce(torch.ones(7), "sum", group)  # nobody waits
    monkeypatch.setattr(collective_rows, "UNWAITED_NS", 0)
    source.tick()

    assert total == 18.0
    assert [row["state"] for row in source.rows()] == ["completed", "completed", "launched"]
    assert [row["wait"] is None for row in source.rows()] == [False, False, True]
    assert not source._open


@pytest.mark.filterwarnings("ignore")
def test_tensors_without_memory_of_their_own_are_waited_for_as_before(group, source):
    source.tick()  # the operators are there
    wait = torch.ops._c10d_functional.wait_tensor

    mapped = torch.func.vmap(wait)(torch.ones(2, 3))
    wrapped = wait(torch._to_functional_tensor(torch.ones(2)))

    assert mapped.tolist() == [[1.0] * 3] * 2
    assert torch._from_functional_tensor(wrapped).tolist() == [1.0, 1.0]
