"""What this rank is in its job: `python.roles`, and the members of its process groups: `python.groups`.

Runs on our own thread: some µs every two seconds, and 0.1 ms more for a minute after groups have come or gone.
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
#: What says a role may come after the groups: optimizers, modules, stages.
SETTLE_S = 60.0


class Roles(Table):
    name = "python.roles"
    doc = (
        "One row for each rank that has a role in its job: its coordinate along each dimension that the job is"
        " parallel in, NULL along those it is not, or that are not known."
    )
    capacity = 1  # what is so now
    columns = (
        Column("ts", "time", "UTC", "when it was found"),
        Column("dp", "int or null", "", "data parallel: DDP, FSDP, ZeRO, the shards of all replicas in a row (HSDP)"),
        Column("tp", "int or null", "", "tensor parallel"),
        Column("pp", "int or null", "", "pipeline parallel: the rank in its pipeline"),
        Column("cp", "int or null", "", "context or sequence parallel"),
        Column("ep", "int or null", "", "expert parallel"),
        Column("stage", "int or null", "", "the stage of the pipeline, where the rank has one and no more"),
    )


class Groups(Table):
    name = "python.groups"
    doc = "One row for each process group that a rank is in, those that were destroyed included."
    capacity = 4_096
    columns = (
        Column("ts", "time", "UTC", "when it was found"),
        Column("group", "text", "", "its name, as in python.collectives; of other ranks another group may have it"),
        Column("group_desc", "text", "", "what it is for, as its maker says: mesh_tp, …"),
        Column("backend", "text", "", "gloo, nccl, cpu:gloo,cuda:nccl, …"),
        Column("group_rank", "int", "", "number of this rank in it"),
        Column("size", "int", "", "how many ranks it has"),
        Column("ranks", "text", "", "its members by their rank in the job, in their order: 0-7, 0-14:2 or 0, 3, 5"),
    )


class Source(BaseSource):
    name = "roles"
    needs = ("torch.distributed.distributed_c10d",)
    tables = (Roles, Groups)
    waits_for = Awaited(
        "nothing says yet in which dimensions the job is parallel",
        "a DeviceMesh with names, a group_desc such as tp, Megatron, DeepSpeed, DDP or FSDP would",
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
