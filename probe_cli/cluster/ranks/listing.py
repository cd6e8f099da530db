"""The ranks behind the endpoints: one entry for each target, whichever endpoint led to it.

Runs in the CLI on its event loop. Costs one question to each host server (`/v1/targets`), which reads files and asks no
target anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from probe_agent.errors import NoAnswer
from probe_agent.wire import TargetInfo, TargetList
from probe_cli.client import Client
from probe_cli.cluster.fanout import Answers, ask
from probe_cli.endpoint import Archive, Endpoint, LocalProcess, Ranks, TcpServer, ThisHost, UnixServer

from .ended import none_lives, rank_text
from .jobs import in_job

__all__ = ["LIST_S", "Member", "each", "in_a_job", "members", "of_ranks"]

#: How long a host server may take to list its targets.
LIST_S = 5.0


@dataclass(frozen=True)
class Member:
    """One target: `endpoint` names it and no other, `server` is where it was found."""

    endpoint: Endpoint
    server: Endpoint
    info: TargetInfo

    @property
    def rank(self) -> int:
        """Its rank, where that is known: see `in_a_job`."""
        assert self.info.rank is not None
        return self.info.rank


async def members(
    endpoints: Sequence[Endpoint], *, timeout_s: float = LIST_S, inject: bool, remark: Callable[[str], None]
) -> Answers[tuple[Member, ...]]:
    """The targets behind each endpoint by rank, or why it did not tell; waits `timeout_s` for each.

    A host server stands for its living targets. A PID, a rank or a folder that somebody names may be of a dead one.
    """

    async def question(client: Client) -> tuple[Member, ...]:
        listed = await client.get(TargetList, "/v1/targets")
        return _behind(client.endpoint, listed.targets)

    return await ask(endpoints, question, timeout_s=timeout_s, inject=inject, remark=remark)


def each(found: Answers[tuple[Member, ...]]) -> Answers[Member]:
    """Every member under its own endpoint, by rank, and those endpoints that did not tell.

    A target that two endpoints led to is one member: two host servers of one user and host list the same.
    """
    unique: dict[tuple[str, int, float], Member] = {}
    for _, behind in found.answered:
        for member in behind:
            unique.setdefault((member.info.host, member.info.pid, member.info.attached_at), member)
    ordered = sorted(unique.values(), key=lambda member: _place(member.info))
    return Answers(tuple((member.endpoint, member) for member in ordered), found.unanswered)


def in_a_job(found: Answers[Member]) -> Answers[Member]:
    """Those that have a rank. Others are children of the job that never get one, or have not joined it yet."""
    return Answers(tuple(one for one in found.answered if one[1].info.rank is not None), found.unanswered)


def of_ranks(found: Answers[Member], ranks: Collection[int]) -> Answers[Member]:
    """Those with one of `ranks`, and why others of these are not found; who else does not answer does not matter."""
    chosen = tuple((endpoint, member) for endpoint, member in found.answered if member.info.rank in ranks)
    absent = set(ranks) - {member.info.rank for _, member in chosen}
    of_absent = [
        (who, error) for who, error in found.unanswered if not isinstance(who, Ranks) or absent & set(who.ranks)
    ]
    if not absent or of_absent:
        return Answers(chosen, tuple(of_absent) if absent else ())
    who = Ranks(tuple(sorted(absent)))
    return Answers(chosen, ((who, NoAnswer(f"no target has {who}", "list the ranks with: probe … ranks")),))


def _behind(server: Endpoint, targets: Sequence[TargetInfo]) -> tuple[Member, ...]:
    if isinstance(server, LocalProcess):
        meant = _living([target for target in targets if target.pid == server.pid])
        return tuple(Member(server, server, target) for target in meant[:1]) or _nobody(server, targets)
    if isinstance(server, Archive):
        return tuple(Member(server, server, target) for target in targets)
    if server.pid is not None:
        meant = _living([target for target in targets if target.pid == server.pid])
    else:
        of_job = targets if server.job is None else in_job(targets, server.job, server)
        if server.rank is not None:
            meant = _living([target for target in of_job if target.rank == server.rank])
        else:
            meant = [target for target in of_job if target.alive]
    ordered = sorted(meant, key=_place)
    whole = replace(server, rank=None, pid=None)
    return tuple(Member(_only(whole, target, targets), whole, target) for target in ordered) or _nobody(server, targets)


def _place(target: TargetInfo) -> tuple[bool, int, str, int]:
    """Where it stands in a list: by rank, those without one last."""
    return target.rank is None, target.rank or 0, target.host, target.pid


def _living(targets: Iterable[TargetInfo]) -> list[TargetInfo]:
    """Those whom the server would take: the dead only when none of them lives."""
    found = list(targets)
    return [target for target in found if target.alive] or found


def _only(server: TcpServer | UnixServer, target: TargetInfo, targets: Sequence[TargetInfo]) -> Endpoint:
    """By its rank where the server knows only one of that rank, or only one in its job; otherwise by its PID."""
    if isinstance(server, ThisHost):
        return LocalProcess(target.pid)
    same_rank = _living(other for other in targets if other.rank == target.rank)
    if target.rank is not None and same_rank == [target]:
        return replace(server, rank=target.rank, job=None)
    in_its_job = [other for other in same_rank if other.job == target.job]
    if target.rank is not None and target.job and in_its_job == [target]:
        return replace(server, rank=target.rank, job=target.job)
    return replace(server, pid=target.pid, job=None)


def _nobody(server: Endpoint, targets: Sequence[TargetInfo]) -> tuple[Member, ...]:
    if targets and not server.selector and not any(target.alive for target in targets):
        raise none_lives(targets, server)
    known = ", ".join(
        f"pid {target.pid} ({rank_text(target)}{'' if target.alive else ', ended'})" for target in targets[:16]
    )
    more = ", …" if len(targets) > 16 else ""
    raise NoAnswer(
        f"{server}: there is no such target, or it has ended",
        f"name one that it knows: {known}{more}" if targets else "attach to a process on that host: probe PID inject",
    )
