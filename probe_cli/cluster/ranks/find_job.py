"""From one known host server to the whole job: every rank has written into the job's own store which host server
answers for it.

Runs in the CLI on its event loop. Costs two questions to each endpoint that was named (`/v1/targets`, `/v1/peers`); the
others are not asked yet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from probe_agent.errors import BadRequest, NoAnswer, ProbeError
from probe_agent.wire import Launched, Peer, PeerList, TargetInfo, TargetList
from probe_cli.client import Client
from probe_cli.cluster.fanout import Answers, ask
from probe_cli.endpoint import (
    Archive,
    Endpoint,
    LocalProcess,
    MissingRanks,
    Report,
    TcpServer,
    UnixServer,
    parse_endpoint,
)

from .ended import none_lives, one_run, target_at, told_first
from .jobs import NoSuchJob, in_job, jobs_of, one_job, same_job
from .launched import Unprepared, unprepared
from .listing import LIST_S

__all__ = ["Job", "find_job"]

_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1")
#: Identifies a target: its host, and when the recorder was attached.
Key = tuple[str, float]


@dataclass(frozen=True)
class Job:
    """Endpoints for all ranks, each once, and the ranks that cannot be asked."""

    endpoints: tuple[Endpoint, ...]
    missing: tuple[tuple[Endpoint | MissingRanks, ProbeError], ...]


@dataclass(frozen=True)
class _Told:
    #: Those of the job that the endpoint means, or all.
    targets: tuple[TargetInfo, ...]
    peers: tuple[Peer, ...]
    notes: tuple[str, ...]
    #: Whether other jobs live there as well.
    has_others: bool


async def find_job(
    endpoints: Sequence[Endpoint],
    *,
    timeout_s: float = LIST_S,
    inject: bool,
    remark: Callable[[str], None],
    prepare: bool = False,
    ranks: Collection[int] = (),
) -> Job:
    """The host servers of all ranks of the job that `endpoints` take part in. These stay, as whole servers, and come
    first. With `prepare`, the ranks on this host of a PID's job (of `ranks` these) get a recorder where they have none.
    """
    answers = await ask(endpoints, _question, timeout_s=timeout_s, inject=inject, remark=remark)
    if answers.answered:  # a job need not be on every host that was named
        failed = tuple((at, error) for at, error in answers.unanswered if not isinstance(error, NoSuchJob))
        answers = Answers(answers.answered, failed)
    elsewhere = _ELSEWHERE
    siblings: list[Launched] = []
    for some in await _unprepared(answers.answered, ranks) if prepare else ():
        elsewhere = some.elsewhere
        siblings += some.processes
        if not some.processes:
            continue
        if inject:
            remark(str(some))
            pids = [LocalProcess(one.pid) for one in some.processes]
            joined = await ask(pids, _question, timeout_s=timeout_s, inject=True, remark=remark)
            answers = Answers(answers.answered + joined.answered, answers.unanswered + joined.unanswered)
        else:
            refused = tuple((LocalProcess(pid), refusal) for pid, refusal in some.refusals())
            answers = Answers(answers.answered, answers.unanswered + refused)
    if ended := _ended_job(answers):
        if ended.endpoints:
            remark("no rank of this job lives: what they left is asked")
        return ended
    one_job([target for _, told in answers.answered for target in told.targets if target.alive], endpoints)
    here: dict[Key, TargetInfo] = {}
    found: dict[Endpoint, None] = {}
    peers: dict[Key, Peer] = {}
    for endpoint, told in answers.answered:
        peers.update((_key(peer), peer) for peer in told.peers)
        targets = {_key(target): target for target in told.targets}
        if targets.keys() - here.keys() or not targets:
            found.update(dict.fromkeys(_whole(endpoint, told)))
        here.update(targets)
    job = next((target.job for target in here.values() if target.alive and target.job), None)
    covered = {peer.address for key, peer in peers.items() if key in here and peer.address is not None}
    others: dict[Endpoint, None] = {}
    missing: list[tuple[Endpoint | MissingRanks, ProbeError]] = [*answers.unanswered]
    for key, peer in peers.items():
        refusal: ProbeError | None
        if key in here:
            refusal = None if here[key].alive else NoAnswer(_place(peer) + " has ended", _ASK_DEAD)
        elif peer.address in covered:
            refusal = NoAnswer(
                _place(peer) + " has been detached", f"attach again on {peer.host}: probe {peer.pid} inject"
            )
        else:
            refusal = _add(peer, job, others)
        if refusal is not None:
            missing.append((MissingRanks((peer.rank,), peer.host), refusal))
    missing += _ended_of_living_jobs(here, peers)
    for sentence in told_first(here.values(), of_living_jobs=True):
        remark(sentence)
    missing += _silent([told for _, told in answers.answered], {one.rank for one in siblings}, elsewhere)
    return Job((*found, *others), tuple(missing))


async def _unprepared(answered: Sequence[tuple[Endpoint, _Told]], ranks: Collection[int]) -> list[Unprepared]:
    """For each PID whose job has unknown ranks: those on this host without a recorder."""
    found: list[Unprepared] = []
    seen = {endpoint.pid for endpoint, _ in answered if isinstance(endpoint, LocalProcess)}
    for endpoint, told in answered:
        living = [target for target in told.targets if target.alive]
        named = [target for target in living if isinstance(endpoint, LocalProcess) and target.pid == endpoint.pid]
        for target in named:
            known = {one.rank for one in living} | {peer.rank for peer in told.peers if peer.host != target.host}
            if target.rank is None or len(known) < target.world_size:
                found.append(await unprepared(target.pid, seen | {one.pid for one in living}, ranks))
                seen |= {one.pid for one in found[-1].processes}
    return found


def _ended_job(answers: Answers[_Told]) -> Job | None:
    """If no target lives: the ranks of a job that has ended, where one of them or the job was named, and why no target
    of the other endpoints can be asked. A folder may belong to a target that has ended."""
    for at, told in answers.answered:
        if isinstance(at, Archive | Report) or any(target.alive for target in told.targets):
            return None
    ranks: dict[Endpoint, TargetInfo] = {}
    missing = [*answers.unanswered]
    for endpoint, told in answers.answered:
        if endpoint.selector:
            ranks.update((target_at(endpoint, target.pid), target) for target in one_run(told.targets, _pid(endpoint)))
        elif told.targets:
            missing.append((endpoint, none_lives(told.targets, endpoint)))
    one_job(ranks.values(), [at for at, _ in answers.answered])
    known = {target.rank: target.world_size for target in ranks.values() if target.rank is not None}
    absent = tuple(rank for rank in range(max(known.values(), default=0)) if rank not in known)
    if absent:
        who = MissingRanks(absent)
        missing.append((who, NoAnswer(f"{who}: nothing is known of them", _ASK_THEIR_HOST)))
    return Job(tuple(ranks), tuple(missing)) if ranks or missing else None


def _pid(endpoint: Endpoint) -> int | None:
    return None if isinstance(endpoint, Archive) else endpoint.pid


def _ended_of_living_jobs(
    here: Mapping[Key, TargetInfo], peers: Collection[Key]
) -> Iterable[tuple[Endpoint | MissingRanks, ProbeError]]:
    """Ranks that have ended while their jobs go on, unless the jobs' stores name them already."""
    living = {(target.job, target.rank) for target in here.values() if target.alive}
    jobs = {job for job, _ in living} - {""}
    for key, target in here.items():
        is_of_one = not target.alive and target.job in jobs and (target.job, target.rank) not in living
        if is_of_one and key not in peers and target.rank is not None:
            living.add((target.job, target.rank))  # said once
            who = MissingRanks((target.rank,), target.host)
            yield who, NoAnswer(f"{who}, pid {target.pid} has ended", _ASK_DEAD)


#: What to do about ranks of which nothing is known.
_ELSEWHERE = "start ranks that have no recorder with PROBE=1"
_ASK_THEIR_HOST = "name the host servers of the job's other hosts, too: -t HOST:PORT"
_ASK_DEAD = "query what it left by its PID, or by its server and rank"


async def _question(client: Client) -> _Told:
    listed = (await client.get(TargetList, "/v1/targets")).targets
    targets = _meant(client.endpoint, listed)
    peers: tuple[Peer, ...] = ()
    notes: tuple[str, ...] = ()
    living = [target for target in targets if target.alive]
    if any(target.world_size > 1 for target in living) and len(jobs_of(living)) == 1:
        try:
            told = await client.get(PeerList, "/v1/peers")
            peers, notes = told.peers, told.notes
        except BadRequest as older:
            notes = (f"its host server is of an older version and cannot tell ({older.message})",)
    if isinstance(client.endpoint, LocalProcess):
        keys = {_key(peer) for peer in peers}
        targets = tuple(target for target in listed if target in targets or _key(target) in keys)
    has_others = len(jobs_of(target for target in listed if target.alive)) > len(jobs_of(living))
    return _Told(targets, peers, notes, has_others)


def _meant(endpoint: Endpoint, targets: Sequence[TargetInfo]) -> tuple[TargetInfo, ...]:
    """The ranks of the job that is meant by one of them, or by its name; all targets where nothing picks some."""
    if isinstance(endpoint, Archive | Report) or not endpoint.selector:
        return tuple(targets)
    if isinstance(endpoint, TcpServer | UnixServer) and endpoint.job is not None:
        return in_job(targets, endpoint.job, endpoint)
    pid = endpoint.pid
    rank = None if isinstance(endpoint, LocalProcess) else endpoint.rank
    picked = [target for target in targets if (target.rank == rank if pid is None else target.pid == pid)]
    picked = [target for target in picked if target.alive] or picked
    return tuple(target for target in targets if target in picked or any(same_job(one, target) for one in picked))


def _whole(endpoint: Endpoint, told: _Told) -> Iterable[Endpoint]:
    """Endpoints that cover all ranks there: the server, or each process of the job on this host."""
    if isinstance(endpoint, TcpServer | UnixServer):
        job = next((target.job for target in told.targets if target.job), None) if told.has_others else None
        return [replace(endpoint, rank=None, pid=None, job=job or endpoint.job)]
    if isinstance(endpoint, Archive | Report):
        return [endpoint]
    return dict.fromkeys([endpoint, *(LocalProcess(target.pid) for target in told.targets if target.alive)])


def _add(peer: Peer, job: str | None, others: dict[Endpoint, None]) -> ProbeError | None:
    """Add the host server of `peer` to `others`, for this job alone if its name is known; return the reason if that is
    not possible."""
    if peer.address is None:
        return NoAnswer(
            f"{_place(peer)}: {peer.note}", f"start a host server on {peer.host}: probe serve --listen HOST:PORT"
        )
    try:
        endpoint = parse_endpoint(peer.address)
    except BadRequest as error:
        return NoAnswer(f"{_place(peer)} has published an invalid address: {error.message}", error.hint)
    if not isinstance(endpoint, TcpServer):
        return NoAnswer(
            f"{_place(peer)} has published an invalid address: {peer.address}",
            f"start its host server with --listen {peer.host}:PORT",
        )
    if _LOOPBACK.fullmatch(endpoint.host) and peer.host != os.uname().nodename:
        return NoAnswer(
            f"{_place(peer)}: its host server listens on {endpoint}, where only {peer.host} reaches it",
            f"start it with PROBE_LISTEN={peer.host}:{endpoint.port}, or ask from {peer.host}",
        )
    others[replace(endpoint, job=job)] = None
    return None


def _silent(told: Sequence[_Told], asked: Set[int | None], elsewhere: str) -> list[tuple[MissingRanks, ProbeError]]:
    """Ranks that must exist, by the world size, and of which nothing else is known: not those `asked` by their PIDs."""
    missing: list[tuple[MissingRanks, ProbeError]] = []
    for world_size in sorted({target.world_size for each in told for target in each.targets if target.alive}):
        known = asked | {peer.rank for each in told for peer in each.peers}
        targets = [target for each in told for target in each.targets if target.world_size == world_size]
        known |= {target.rank for target in targets}
        ranks = tuple(rank for rank in range(world_size) if rank not in known)
        if world_size > 1 and ranks:
            notes = dict.fromkeys(note for each in told for note in each.notes)
            why = "; ".join(notes) or "no recorder of theirs has written one into the job's store"
            missing.append(
                (
                    MissingRanks(ranks),
                    NoAnswer(
                        f"{MissingRanks(ranks)} of {world_size}: no address known: {why}",
                        f"name the host server of each host: -t HOST:PORT -t HOST:PORT, or -t @FILE; {elsewhere}",
                    ),
                )
            )
    return missing


def _key(target: TargetInfo | Peer) -> Key:
    return target.host, target.attached_at


def _place(peer: Peer) -> str:
    return f"{MissingRanks((peer.rank,), peer.host)}, pid {peer.pid}"
