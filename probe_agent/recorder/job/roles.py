"""Role of this rank in its job: its coordinates along the job's parallel dimensions.

`dp`, `tp`, `pp`, `cp` and `ep` as far as they are known, and the `stage` of a pipeline; a dimension of size 1 does not
count. Read from the groups, descriptions and attributes of torch, Megatron and DeepSpeed; nothing is imported and no
collective is called. Runs on the recorder's thread: under 0.1 ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..torch import loaded
from ..torch.seen import Seen

__all__ = ["DIMENSIONS", "find"]

#: Names of the dimensions in meshes and in descriptions of process groups.
_NAMES = {
    "dp": ("dp", "data", "data_parallel", "batch"),
    "tp": ("tp", "tensor", "tensor_parallel", "tensor_model_parallel", "mp", "model"),
    "pp": ("pp", "pipe", "pipeline", "pipeline_parallel", "pipeline_model_parallel", "stage"),
    "cp": ("cp", "context", "context_parallel", "sp", "sequence", "sequence_parallel"),
    "ep": ("ep", "expert", "expert_parallel", "expert_model_parallel"),
}
#: Data parallel in two dimensions: copies of the shards (HSDP).
_REPLICAS, _SHARDS = ("replicate", "dp_replicate", "ddp"), ("shard", "dp_shard", "fsdp")
DIMENSIONS = (*_NAMES, "stage")
#: Globals of megatron.core.parallel_state, and of deepspeed.utils.groups.
_MEGATRON = {
    "dp": "_DATA_PARALLEL_GROUP",
    "tp": "_TENSOR_MODEL_PARALLEL_GROUP",
    "pp": "_PIPELINE_MODEL_PARALLEL_GROUP",
    "cp": "_CONTEXT_PARALLEL_GROUP",
    "ep": "_EXPERT_MODEL_PARALLEL_GROUP",
}
_DEEPSPEED = {"dp": "_DATA_PARALLEL_GROUP", "tp": "_TENSOR_MODEL_PARALLEL_GROUP", "ep": "_EXPERT_PARALLEL_GROUP"}
#: Wrapper class -> attribute with its data-parallel group.
_DATA_PARALLEL = {
    "DistributedDataParallel": "process_group",
    "FullyShardedDataParallel": "process_group",
    "DeepSpeedEngine": "data_parallel_group",
}
#: Parameters per group of an optimizer whose mesh is read.
MAX_PARAMETERS = 50

Coordinate = tuple[str, int, int]  # the name of a dimension, the rank along it, and how many there are


def find(seen: Seen) -> dict[str, int]:
    """Return the known coordinates; the most explicit source wins."""
    found: dict[str, int] = {}
    for coordinates in (_of_megatron(), _of_deepspeed(seen), _of_stages(seen)):
        for name, rank, size in coordinates:
            if size > 1:
                found.setdefault(name, rank)
    for coordinates in (_of_groups(), _of_meshes(seen), _of_modules(seen)):
        for name, rank in _named(coordinates).items():
            found.setdefault(name, rank)
    return {name: found[name] for name in DIMENSIONS if name in found}


def _named(coordinates: Iterable[Coordinate]) -> dict[str, int]:
    """Return the dimensions among `coordinates` with a known name."""
    along: dict[str, tuple[int, int]] = {}
    for name, rank, size in coordinates:
        if size > 1:
            along.setdefault(name, (rank, size))
    found = {
        role: next(along[name][0] for name in names if name in along)
        for role, names in _NAMES.items()
        if any(name in along for name in names)
    }
    parts = [next((along[name] for name in names if name in along), None) for names in (_REPLICAS, _SHARDS)]
    if "dp" not in found and any(parts):
        (replica, _), (shard, num_shards) = (part or (0, 1) for part in parts)
        found["dp"] = replica * num_shards + shard
    return found


def _of_groups() -> Iterator[Coordinate]:
    """Yield coordinates from descriptions of process groups, such as DeviceMesh's mesh_tp."""
    c10d: Any = loaded("torch.distributed.distributed_c10d")
    for group in list(c10d._world.pg_names):
        description = str(getattr(group, "group_desc", "")).lower()
        yield from _along(description.removeprefix("mesh_").removesuffix("_group"), group)


def _along(name: str, group: Any) -> Iterator[Coordinate]:
    """Yield the coordinate of a group; nothing for a list of groups, or None."""
    if hasattr(group, "rank") and hasattr(group, "size"):
        yield name, int(group.rank()), int(group.size())


def _of_megatron() -> Iterator[Coordinate]:
    state: Any = loaded("megatron.core.parallel_state")
    if state is None:
        return
    for name, variable in _MEGATRON.items():
        group = getattr(state, variable, None)
        yield from _along(name, group)
        if name == "pp" and getattr(state, "_VIRTUAL_PIPELINE_MODEL_PARALLEL_WORLD_SIZE", None) is None:
            yield from _along("stage", group)


def _of_deepspeed(seen: Seen) -> Iterator[Coordinate]:
    groups: Any = loaded("deepspeed.utils.groups")
    if groups is None:
        return
    grids = [getattr(groups, "mpu", None), *(vars(module).get("_grid") for module in seen.modules.alive())]
    grid: Any = next((grid for grid in grids if type(grid).__name__ == "PipelineParallelGrid"), None)
    if grid is not None:
        yield "dp", int(grid.data_parallel_id), int(grid.data_parallel_size)
        yield "pp", int(grid.stage_id), int(grid.pipe_parallel_size)
        yield "stage", int(grid.stage_id), int(grid.pipe_parallel_size)
        yield "tp", int(grid.get_slice_parallel_rank()), int(grid.slice_parallel_size)
    for name, variable in _DEEPSPEED.items():
        group = getattr(groups, variable, None)
        if isinstance(group, dict):  # of experts, by name
            group = next(iter(group.values()), None)
        yield from _along(name, group)


def _of_stages(seen: Seen) -> Iterator[Coordinate]:
    """Yield coordinates from the stages of torch's own pipelines that have run here; with several stages only `pp`."""
    stages = dict(seen.stages)
    for index, (rank, size, num_stages) in stages.items():
        yield "pp", rank, size
        if len(stages) == 1:
            yield "stage", index, num_stages


def _of_meshes(seen: Seen) -> Iterator[Coordinate]:
    """Yield coordinates from meshes of sharded parameters: the group of a mesh of all ranks has no description."""
    for mesh in _meshes(seen):
        yield from zip(mesh.mesh_dim_names or (), mesh.get_coordinate() or (), _sizes(mesh))


def _meshes(seen: Seen) -> list[Any]:
    found: dict[int, Any] = {}
    for optimizer in seen.optimizers.alive():
        parameters = (it for group in optimizer.param_groups for it in group["params"][:MAX_PARAMETERS])
        for parameter in parameters:
            if type(parameter).__name__ == "DTensor":
                found[id(parameter._spec.mesh)] = parameter._spec.mesh
    return list(found.values())


def _sizes(mesh: Any) -> list[int]:
    return [int(mesh.size(at)) for at in range(mesh.ndim)]


def _of_modules(seen: Seen) -> Iterator[Coordinate]:
    """Yield coordinates from data-parallel wrappers, whatever their group or mesh is called."""
    for module in seen.modules.alive():
        names = [kind.__name__ for kind in type(module).__mro__]
        keeping = [_DATA_PARALLEL[name] for name in names if name in _DATA_PARALLEL]
        yield from _along("dp", vars(module).get(keeping[0]) if keeping else None)
        if "FSDPModule" in names:
            for mesh in _meshes(seen):
                if mesh.mesh_dim_names is None and mesh.ndim == 1:
                    yield "dp", int(mesh.get_coordinate()[0]), int(mesh.size(0))
