"""Simulated ranks that call collectives until nothing moves any more.

Each rank issues its calls in order; its device executes them in order, and one ends when the devices of all its ranks
have come to it. A rank of gloo issues a call when the one before is over, one of NCCL runs `ahead` calls ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probe_cli.cluster.hang.calls import Call, Group, Rank

__all__ = ["Op", "grid", "stand_still"]


@dataclass(frozen=True)
class Op:
    """One call in a rank's program."""

    group: Group
    op: str = "all_reduce"
    size: int = 4
    #: Of a send or a receive.
    peer: int | None = None


def grid(dp: int, tp: int, pp: int, steps: int) -> dict[int, list[Op]]:
    """The programs of a healthy job: in each step all_reduce in the layers, sends along the stages, gradients."""
    world = dp * tp * pp
    place = {rank: (rank // (tp * pp), rank // tp % pp, rank % tp) for rank in range(world)}

    def members(rank: int, *fixed: int) -> tuple[int, ...]:
        return tuple(other for other in place if all(place[other][axis] == place[rank][axis] for axis in fixed))

    programs: dict[int, list[Op]] = {rank: [] for rank in place}
    for rank, (_, stage, _) in place.items():
        tp_group, dp_group = Group("tp", members(rank, 0, 1)), Group("dp", members(rank, 1, 2))
        pp_group, everyone = Group("pp", members(rank, 0, 2)), Group("0", tuple(place))
        for _ in range(steps):
            if stage > 0:
                programs[rank].append(Op(pp_group, "recv", peer=pp_group.ranks[stage - 1]))
            programs[rank] += [Op(tp_group), Op(tp_group, "all_gather", 8)] if tp > 1 else []
            if stage < pp - 1:
                programs[rank].append(Op(pp_group, "send", peer=pp_group.ranks[stage + 1]))
            programs[rank] += [Op(dp_group, "reduce_scatter", 64)] if dp > 1 else []
            programs[rank].append(Op(everyone, size=1))
    return programs


def stand_still(
    programs: Mapping[int, Sequence[Op]],
    *,
    ahead: int = 1,
    cpu_stops: Mapping[int, int] | None = None,
    device_stops: Mapping[int, int] | None = None,
    tells_started: bool = False,
) -> dict[int, Rank]:
    """What the ranks show when nothing moves any more; a rank's CPU or device stops before that call of its own."""
    issued, done = dict.fromkeys(programs, 0), dict.fromkeys(programs, 0)
    keys = {rank: _keys(rank, program) for rank, program in programs.items()}

    def begun(rank: int) -> object:
        """The call that the rank's device is at, which its CPU has issued."""
        at = done[rank]
        return keys[rank][at] if at < issued[rank] and at < (device_stops or {}).get(rank, len(keys[rank])) else None

    moves = True
    while moves:
        moves = False
        for rank, program in programs.items():
            last = min(len(program), done[rank] + ahead, (cpu_stops or {}).get(rank, len(program)))
            if issued[rank] < last:
                issued[rank], moves = last, True
        for rank, program in programs.items():
            key = begun(rank)
            if key is None:
                continue
            op = program[done[rank]]
            needed = op.group.ranks if op.peer is None else (rank, op.peer)
            if all(begun(other) == key for other in needed):
                for other in needed:
                    done[other] += 1
                moves = True
    return {
        rank: Rank(
            rank,
            tuple(
                Call(
                    op.group,
                    number,
                    op.op,
                    order,
                    has_started=tells_started and (order < done[rank] or keys[rank][order] == begun(rank)),
                    is_over=order < done[rank],
                    inputs=((op.size,),),
                    outputs=((op.size,),),
                    dtypes=("Float",),
                    called=float(order),
                    peer=op.peer,
                )
                for order, (op, number) in enumerate(zip(program, _numbers(program), strict=True))
                if order < issued[rank]
            ),
            {op.group: op.group.name for op in program},
        )
        for rank, program in programs.items()
    }


def _numbers(program: Sequence[Op]) -> list[int]:
    """Each call's number in its group; sends and receives have a count of their own."""
    counts: dict[tuple[Group, bool], int] = {}
    found = []
    for op in program:
        place = (op.group, op.peer is None)
        counts[place] = counts.get(place, 0) + 1
        found.append(counts[place])
    return found


def _keys(rank: int, program: Sequence[Op]) -> list[object]:
    """What two ranks have in common when they are in the same call."""
    sends: dict[tuple[int, int], int] = {}
    found: list[object] = []
    for op, number in zip(program, _numbers(program), strict=True):
        if op.peer is None:
            found.append((op.group, number, op.op, op.size))
        else:
            way = (rank, op.peer) if op.op == "send" else (op.peer, rank)
            sends[way] = sends.get(way, 0) + 1
            found.append((op.group, way, sends[way]))
    return found
