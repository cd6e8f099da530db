"""Role of this rank in its job (`python.roles`) and its process groups (`python.groups`).

Runs on the recorder's thread: some µs every 2 s, and 0.1 ms more for a minute after process groups have changed.
"""

from __future__ import annotations

from time import monotonic, time_ns
from typing import Any

from ..job.roles import DIMENSIONS, find
from ..ring.table import NULL_INT, Column, Table
from ..source import Awaited, Recorder
from ..source import Source as BaseSource
from ..torch import loaded
from ..torch.collective_groups import in_order
from ..torch.flight_recorder import ranks_text

__all__ = ["Groups", "Roles", "Source"]

LOOK_S = 2.0
#: Optimizers, modules and stages, which reveal roles too, may come after the groups.
SETTLE_S = 60.0


class Roles(Table):
    name = "python.roles"
    doc = (
        "One row per rank with a role in its job: its coordinate along each parallel dimension, NULL if the job is not"
        " parallel along that dimension or it is unknown."
    )
    capacity = 1  # the current role
    columns = (
        Column("ts", "time", "UTC", "time of discovery"),
        Column("dp", "int or null", "", "data parallel: DDP, FSDP, ZeRO; with HSDP, shards numbered across replicas"),
        Column("tp", "int or null", "", "tensor parallel"),
        Column("pp", "int or null", "", "pipeline parallel: rank in the pipeline"),
        Column("cp", "int or null", "", "context or sequence parallel"),
        Column("ep", "int or null", "", "expert parallel"),
        Column("stage", "int or null", "", "stage of the pipeline, if the rank runs exactly one"),
    )


class Groups(Table):
    name = "python.groups"
    doc = "One row per process group of a rank, destroyed groups included."
    capacity = 4_096
    columns = (
        Column("ts", "time", "UTC", "time of discovery"),
        Column("group", "text", "", "its name, as in python.collectives; not unique across ranks"),
        Column("group_desc", "text", "", "description given by its creator: mesh_tp, …"),
        Column("backend", "text", "", "gloo, nccl, cpu:gloo,cuda:nccl, …"),
        Column("group_rank", "int", "", "rank of this process in the group"),
        Column("size", "int", "", "number of ranks in the group"),
        Column("ranks", "text", "", "ranks in the job of its members, in group order: 0-7, 0-14:2 or 0, 3, 5"),
    )


class Source(BaseSource):
    name = "roles"
    needs = ("torch.distributed.distributed_c10d",)
    tables = (Roles, Groups)
    waits_for = Awaited(
        "the parallel dimensions of the job are not known yet",
        "name them: a DeviceMesh with mesh_dim_names, or process groups with a group_desc such as tp",
    )
    _look_at = _settled_at = 0.0

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._roles, self._groups = recorder.buffer(Roles), recorder.buffer(Groups)
        self._seen: tuple[object, ...] = ()
        self._written: set[tuple[object, ...]] = set()

    def tick(self) -> None:
        now = monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        world = getattr(loaded("torch.distributed.distributed_c10d"), "_world", None)
        if world is None or world.default_pg is None:
            return
        it = self.recorder.seen
        seen = (*world.pg_names.values(), len(it.stages), len(it.optimizers.alive()), len(it.modules.alive()))
        if seen != self._seen:
            self._seen, self._settled_at = seen, now + SETTLE_S
            self._write_groups(world)
        if now < self._settled_at:
            roles = find(it)
            if roles and roles != self.recorder.roles:
                self.recorder.roles = roles
                self._write_roles(roles)

    def _write_roles(self, roles: dict[str, int]) -> None:
        self._roles.rows.append((time_ns() // 1000, *(roles.get(name, NULL_INT) for name in DIMENSIONS)))

    def _write_groups(self, world: Any) -> None:
        number = self._groups.number
        for group, name in list(world.pg_names.items()):
            ranks = in_order(world.pg_group_ranks.get(group, {}))
            if (name, *ranks) in self._written:
                continue
            self._written.add((name, *ranks))
            self._groups.rows.append(
                (
                    time_ns() // 1000,
                    number(str(name)),
                    number(str(getattr(group, "group_desc", ""))),
                    number(str(world.pg_map.get(group, ("",))[0])),
                    int(group.rank()),
                    len(ranks),
                    number(ranks_text(ranks)),
                )
            )
