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
from probe_cli.endpoint import Archive, Endpoint, LocalProcess, MissingRanks, Report, TcpServer, ThisHost, UnixServer

from .ended import none_lives, rank_text
from .jobs import in_job

__all__ = ["LIST_S", "Rank", "list_ranks", "only_ranks", "unique", "with_rank"]

#: How long a host server may take to list its targets.
LIST_S = 5.0


@dataclass(frozen=True)
class Rank:
    """One target: `endpoint` names it and no other, `server` is where it was found."""

    endpoint: Endpoint
    server: Endpoint
    info: TargetInfo

    @property
    def rank(self) -> int:
        """Its rank, where that is known: see `with_rank`."""
        assert self.info.rank is not None
        return self.info.rank


async def list_ranks(
    endpoints: Sequence[Endpoint],
    *,
    timeout_s: float = LIST_S,
    inject: bool,
    remark: Callable[[str], None],
    keep_job: bool = False,
) -> Answers[tuple[Rank, ...]]:
    """The targets behind each endpoint by rank, or why it did not answer; waits `timeout_s` for each. With `keep_job`
    the endpoints have the job's name also where its rank is unambiguous now: another job may begin there.

    A host server stands for its living targets. A PID, a rank or a folder may name one that has ended.
    """

    async def question(client: Client) -> tuple[Rank, ...]:
        listed = await client.get(TargetList, "/v1/targets")
        return _behind(client.endpoint, listed.targets, keep_job=keep_job)

    return await ask(endpoints, question, timeout_s=timeout_s, inject=inject, remark=remark)


def unique(found: Answers[tuple[Rank, ...]]) -> Answers[Rank]:
    """Each target once, under its own endpoint and by rank, and the endpoints that did not answer.

    Two endpoints may lead to the same target: two host servers of one user and host list the same.
    """
    found_once: dict[tuple[str, int, float], Rank] = {}
    for _, behind in found.answered:
        for one in behind:
            found_once.setdefault((one.info.host, one.info.pid, one.info.attached_at), one)
    ordered = sorted(found_once.values(), key=lambda one: _place(one.info))
    return Answers(tuple((one.endpoint, one) for one in ordered), found.unanswered)


def with_rank(found: Answers[Rank]) -> Answers[Rank]:
    """Those that have a rank. The others are children of the job that never get one, or have not joined it yet."""
    return Answers(tuple(one for one in found.answered if one[1].info.rank is not None), found.unanswered)


def only_ranks(found: Answers[Rank], ranks: Collection[int]) -> Answers[Rank]:
    """Those with one of `ranks`, and why others of these are not found; other ranks do not matter."""
    chosen = tuple((endpoint, one) for endpoint, one in found.answered if one.info.rank in ranks)
    absent = set(ranks) - {one.info.rank for _, one in chosen}
    of_absent = [
        (who, error) for who, error in found.unanswered if not isinstance(who, MissingRanks) or absent & set(who.ranks)
    ]
    if not absent or of_absent:
        return Answers(chosen, tuple(of_absent) if absent else ())
    who = MissingRanks(tuple(sorted(absent)))
    return Answers(chosen, ((who, NoAnswer(f"no target has {who}", "list the ranks with: probe … ranks")),))


def _behind(server: Endpoint, targets: Sequence[TargetInfo], *, keep_job: bool = False) -> tuple[Rank, ...]:
    if isinstance(server, LocalProcess):
        meant = _living([target for target in targets if target.pid == server.pid])
        return tuple(Rank(server, server, target) for target in meant[:1]) or _no_target(server, targets)
    if isinstance(server, Archive):
        return tuple(Rank(server, server, target) for target in targets)
    if isinstance(server, Report):
        meant = [target for target in targets if server.pid in (None, target.pid)]
        report = replace(server, pid=None)
        return tuple(Rank(replace(report, pid=target.pid), report, target) for target in sorted(meant, key=_place))
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
    found = tuple(Rank(_only(whole, target, targets, keep_job), whole, target) for target in ordered)
    return found or _no_target(server, targets)


def _place(target: TargetInfo) -> tuple[bool, int, str, int]:
    """Sort key: by rank, those without one last."""
    return target.rank is None, target.rank or 0, target.host, target.pid


def _living(targets: Iterable[TargetInfo]) -> list[TargetInfo]:
    """Those that the server would choose: ended ones only if none lives."""
    found = list(targets)
    return [target for target in found if target.alive] or found


def _only(
    server: TcpServer | UnixServer, target: TargetInfo, targets: Sequence[TargetInfo], keep_job: bool
) -> Endpoint:
    """The endpoint of one target: by its rank if the server knows only one of that rank, or only one in its job;
    otherwise by its PID."""
    if isinstance(server, ThisHost):
        return LocalProcess(target.pid)
    same_rank = _living(other for other in targets if other.rank == target.rank)
    if not keep_job and target.rank is not None and same_rank == [target]:
        return replace(server, rank=target.rank, job=None)
    in_its_job = [other for other in same_rank if other.job == target.job]
    if target.rank is not None and target.job and in_its_job == [target]:
        return replace(server, rank=target.rank, job=target.job)
    return replace(server, pid=target.pid, job=None)


def _no_target(server: Endpoint, targets: Sequence[TargetInfo]) -> tuple[Rank, ...]:
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
