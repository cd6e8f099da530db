"""Coordinates of a rank, from torch, Megatron and DeepSpeed: rank 5 of eight simulated ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from probe_agent.recorder.job.roles import find
from probe_agent.recorder.samplers import roles


@pytest.fixture(autouse=True)
def rank_five() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=8)
    yield
    dist.destroy_process_group()


@pytest.fixture
def recorder(recording):
    with recording() as it:
        yield it.recorder


def test_a_job_that_says_nothing_has_no_roles(recorder):
    dist.new_group([4, 5])

    assert find(recorder.seen) == {}


def test_a_mesh_says_it_in_the_names_of_its_dimensions(recorder):
    init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))

    assert find(recorder.seen) == {"dp": 0, "tp": 1, "pp": 1}


@pytest.mark.parametrize("names", [("replicate", "shard"), ("dp_replicate", "dp_shard"), ("ddp", "fsdp")])
def test_shards_of_replicas_are_data_parallel_in_a_row(recorder, names):
    init_device_mesh("cpu", (2, 4), mesh_dim_names=names)

    assert find(recorder.seen) == {"dp": 5}


def test_a_dimension_of_one_rank_is_none(recorder):
    init_device_mesh("cpu", (2, 4, 1), mesh_dim_names=("dp", "cp", "tp"))

    assert find(recorder.seen) == {"dp": 1, "cp": 1}


def test_a_group_says_it_in_its_description(recorder):
    dist.new_group([1, 5], group_desc="ep")

    assert find(recorder.seen) == {"ep": 1}


def test_a_mesh_of_all_ranks_is_found_by_what_is_sharded_on_it(recorder):
    mesh = init_device_mesh("cpu", (8,), mesh_dim_names=("tp",))
    model = parallelize_module(nn.Linear(8, 8), mesh, ColwiseParallel())
    assert find(recorder.seen) == {}

    optimizer = torch.optim.SGD(model.parameters())
    recorder.seen.optimizers.note(optimizer)

    assert find(recorder.seen) == {"tp": 5}


def test_fsdp_is_data_parallel_although_its_mesh_has_no_name(recorder):
    model = fully_shard(nn.Linear(8, 8), mesh=init_device_mesh("cpu", (8,)))
    optimizer = torch.optim.SGD(model.parameters())
    recorder.seen.optimizers.note(optimizer)
    recorder.seen.modules.note(model)

    assert find(recorder.seen) == {"dp": 5}


def test_ddp_is_data_parallel_in_its_group(recorder):
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2), process_group=dist.new_group([3, 4, 5]))
    recorder.seen.modules.note(model)

    assert find(recorder.seen) == {"dp": 2}


def test_a_rank_of_several_stages_has_none(recorder):
    recorder.seen.stages[1] = (1, 4, 8)
    assert find(recorder.seen) == {"pp": 1, "stage": 1}

    recorder.seen.stages[5] = (1, 4, 8)

    assert find(recorder.seen) == {"pp": 1}


def test_megatron(recorder):
    state = pytest.importorskip("megatron.core.parallel_state")
    state.initialize_model_parallel(
        tensor_model_parallel_size=2, pipeline_model_parallel_size=2, create_gloo_process_groups=False
    )
    try:
        expected = {
            "dp": state.get_data_parallel_rank(),
            "tp": state.get_tensor_model_parallel_rank(),
            "pp": state.get_pipeline_model_parallel_rank(),
        }
        assert find(recorder.seen) == {**expected, "stage": expected["pp"]}
    finally:
        state.destroy_model_parallel()


def test_deepspeed(recorder, monkeypatch):
    groups = pytest.importorskip("deepspeed.utils.groups")
    topology = pytest.importorskip("deepspeed.runtime.pipe.topology")
    monkeypatch.setattr(topology, "dist", dist)
    grid = topology.PipelineParallelGrid(topology.PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=2))

    monkeypatch.setattr(groups, "mpu", grid)

    expected = {"dp": grid.data_parallel_id, "tp": grid.get_slice_parallel_rank(), "pp": grid.stage_id}
    assert find(recorder.seen) == {**expected, "stage": grid.stage_id}


def test_there_is_one_row_of_roles_and_one_for_each_group(recording):
    with recording() as it:
        source = roles.Source(it.recorder)
        source.tick()
        init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
        source._look_at = 0.0
        source.tick()
        it.recorder.seen.stages[2] = (2, 4, 4)
        source._look_at = 0.0
        source.tick()
        *_, newest = it.rows("python.roles")
        groups = {row["group_desc"]: row for row in it.rows("python.groups")}

    assert [newest[name] for name in ("dp", "tp", "pp", "cp", "ep", "stage")] == [2, 1, 2, None, None, 2]
    assert [groups["mesh_dp"][name] for name in ("ranks", "size", "group_rank")] == ["1-7:2", 4, 2]
    assert [groups["mesh_tp"][name] for name in ("ranks", "size", "group_rank")] == ["4, 5", 2, 1]
    assert len(groups) == 3
