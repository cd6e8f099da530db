"""The ranks of a job that was not prepared: those on this host have no recorder until somebody asks for all of them.

Runs in the CLI on its event loop. Costs one question to the host server, where ranks of a PID's job are not known.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from probe_agent.errors import AttachRefused
from probe_agent.wire import Launched, SiblingList
from probe_cli.client import open_host

__all__ = ["Unprepared", "unprepared"]


@dataclass(frozen=True)
class Unprepared:
    """Ranks of a job on this host that have no recorder, and what to type where the others are."""

    pid: int
    by: str
    processes: tuple[Launched, ...]
    launcher: str

    def __str__(self) -> str:
        named = ", ".join(map(_named, self.processes[:16])) + (", …" if len(self.processes) > 16 else "")
        return f"pid {self.pid} is a rank of a job, by {self.by}: attaching to its other ranks on this host: {named}"

    @property
    def elsewhere(self) -> str:
        """What to type on another host, so that the ranks there can be found through the job's store."""
        attach = f"probe $(pgrep -of {self.launcher}) inject" if self.launcher else "probe PID inject, for each of them"
        return f"on their hosts: {attach}; probe serve --listen HOST:PORT"

    def refusals(self) -> list[tuple[int, AttachRefused]]:
        """Why they are not asked, where nothing may be attached."""
        why = "has no recorder, and --no-inject forbids to attach one"
        return [
            (one.pid, AttachRefused(f"{_named(one)} {why}", f"attach to it: probe {one.pid} inject"))
            for one in self.processes
        ]


async def unprepared(pid: int, with_recorder: Collection[int], ranks: Collection[int]) -> Unprepared:
    """The ranks on this host (of `ranks` only these, when there are any) of the job that process `pid` is a rank of,
    without those whose PIDs are `with_recorder`."""
    async with open_host() as client:
        found = await client.get(SiblingList, "/v1/siblings", pid=str(pid))
    wanted = [one for one in found.processes if not ranks or one.rank is None or one.rank in ranks]
    without = tuple(one for one in wanted if one.pid not in with_recorder and one.pid != pid)
    return Unprepared(pid, found.by, without, found.launcher)


def _named(one: Launched) -> str:
    return f"pid {one.pid}" if one.rank is None else f"pid {one.pid} (rank {one.rank})"
