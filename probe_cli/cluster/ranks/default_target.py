"""The target when none is named: the only one on this host.

Runs in the CLI. Costs one question to the host server.
"""

from __future__ import annotations

from probe_agent.errors import BadRequest, NoAnswer
from probe_agent.wire import TargetList
from probe_cli.client import open_host
from probe_cli.endpoint import Endpoint, LocalProcess

from .ended import none_lives, rank_text

__all__ = ["all_targets", "default_target"]


async def all_targets() -> tuple[Endpoint, ...]:
    """Every living target of this host. Raises NoAnswer when there is none."""
    async with open_host() as client:
        targets = (await client.get(TargetList, "/v1/targets")).targets
    found = tuple(LocalProcess(target.pid) for target in targets if target.alive)
    if not found and targets:
        raise none_lives(targets)
    if not found:
        raise NoAnswer(
            "no target is named, and no living process on this host has a recorder", "name a host server: -t HOST:PORT"
        )
    return found


async def default_target() -> Endpoint:
    """The target of this host when there is exactly one. Raises with the list of those found otherwise."""
    async with open_host() as client:
        targets = (await client.get(TargetList, "/v1/targets")).targets
    # A target that has ended can still be asked, but is not meant when a living one is there.
    living = tuple(target for target in targets if target.alive)
    if len(targets) > 1 and not living:
        raise none_lives(targets)
    targets = living or targets
    if len(targets) == 1:
        return LocalProcess(targets[0].pid)
    if not targets:
        raise NoAnswer(
            "no target is named, and no process on this host has a recorder",
            "name a process: probe PID COMMAND; list the candidates with: probe list",
        )
    found = "\n".join(
        f"  {target.pid}  {target.job or 'job not known yet'}  {rank_text(target)}  {' '.join(target.command)}"
        for target in targets
    )
    raise BadRequest(
        f"no target is named, and {len(targets)} run on this host:\n{found}",
        f"name one, as in: probe {targets[0].pid} COMMAND, or a job: --job {max(target.job for target in targets)};"
        " or set PROBE_ENDPOINT",
    )
