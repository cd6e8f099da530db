"""Code that runs on all ranks between the same two steps: from the command to what is on the screen.

Runs in the CLI. How the ranks agree is in cluster/two_phase/.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .repl.evaluate import print_output
from .session import Session, remark

if TYPE_CHECKING:
    from .cluster.ranks.listing import Member
    from .cluster.two_phase.coordinator import Part
    from .endpoint import Endpoint

__all__ = ["evaluate_together"]


def evaluate_together(session: Session, code: str, at: int | None, timeout_s: float | None) -> int:
    """Run `code` after step `at` (None: the earliest) on every rank of the job, or on those that were named, and show
    what came of it."""
    from .client.loop import run
    from .cluster.two_phase.coordinator import run_together

    found = session.ranks_of_job()
    if found.unanswered:
        remark("so the code ran nowhere")
        return found.exit_code
    _check_ranks(found.answered, session.everyone and not session.ranks)
    ranks = [(member.rank, endpoint) for endpoint, member in found.answered]
    parts = run(run_together(ranks, code, at=at, timeout_s=timeout_s, remark=remark), ctrl_c=False)
    _show(parts)
    broken = [(part.rank, part.error) for part in parts if part.error is not None]
    for rank, error in broken:
        remark(f"probe: rank {rank}: {error.message}" + (f"\ntry: {error.hint}" if error.hint else ""))
    return 3 if broken else int(any(part.state != "finished" for part in parts))


def _check_ranks(members: Sequence[tuple[Endpoint, Member]], whole_job: bool) -> None:
    """Raise when these are not the ranks of one job, or not all of them."""
    from probe_agent.errors import BadRequest

    from .cluster.two_phase.coordinator import NothingRan
    from .text import num_ranks

    ranks = Counter(member.rank for _, member in members)
    twice = [(endpoint, member) for endpoint, member in members if ranks[member.rank] > 1]
    if twice:
        named = "\n".join(f"  {at}  rank {one.rank}  {' '.join(one.info.command)}" for at, one in twice[:16])
        raise BadRequest(f"these are ranks of several jobs, which have no step in common:\n{named}", "name one's")
    missing = set(range(max(member.info.world_size for _, member in members))) - set(ranks)
    if whole_job and missing:
        raise NothingRan(
            f"{num_ranks(missing)} of the job cannot be reached by these endpoints, so the code ran nowhere",
            "name the hosts of all ranks: -t HOST:PORT -t …; is there a recorder in each? `probe … ranks` shows them",
            3,
        )


def _show(parts: Sequence[Part]) -> None:
    """What each rank has put out, equal ones once."""
    from .render.show import heading
    from .text import ranks_text

    for at, (ranks, output) in enumerate(_folded(parts)):
        if len(parts) > 1:
            heading(f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)}", first=at == 0)
        for stream, text in output:
            print_output(stream, text)
    sys.stdout.flush()


def _folded(parts: Sequence[Part]) -> Iterator[tuple[list[int], list[tuple[str, str]]]]:
    same: dict[tuple[object, ...], list[Part]] = {}
    for part in parts:
        same.setdefault((part.state, part.error is None, *part.output), []).append(part)
    for alike in same.values():
        yield [part.rank for part in alike], alike[0].output
