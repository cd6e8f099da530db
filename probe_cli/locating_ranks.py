"""Where all ranks are, asked and shown as one tree: what `backtrace --all-ranks` does.

Runs in the CLI.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING

from .endpoint import Endpoint, LocalProcess
from .session import Session, remark

if TYPE_CHECKING:
    from probe_agent.wire import Backtrace

    from .client import Client
    from .cluster.fanout import Answers

__all__ = ["show_tree"]

#: So many different remarks are written out.
MAX_SAID = 8


def show_tree(session: Session, *, all_threads: bool, as_json: bool, timeout_s: float) -> int:
    """Ask every rank behind the endpoints for its stacks, and write them folded."""
    from .cluster.stacks import fold, threads_of
    from .render.stack_tree import branch_json, tree_lines
    from .render.terminal import wants_colour

    ranks, answers = _ask(session, all_threads, timeout_s)
    found = _numbered(ranks, answers)
    tree = fold(
        (rank, name, thread.frames)
        for rank, taken in found
        for name, thread in threads_of(taken, all_threads=all_threads)
    )
    notes: dict[str, list[int]] = {}
    for rank, taken in found:
        for note in taken.notes:
            notes.setdefault(note, []).append(rank)
    if as_json:
        answer = {
            "asked": answers.num_asked,
            "answered": len(answers.answered),
            "tree": [branch_json(branch) for branch in tree],
            "notes": [{"ranks": those, "note": note} for note, those in notes.items()],
            "unanswered": [
                {"endpoint": str(at), "message": error.message, "hint": error.hint} for at, error in answers.unanswered
            ],
        }
        print(json.dumps(answer, indent=1, ensure_ascii=False))
    else:
        sys.stdout.writelines(line + "\n" for line in tree_lines(tree, wants_colour(sys.stdout)))
        sys.stdout.flush()
        _say_notes(notes)
    return answers.exit_code


def _numbered(ranks: dict[Endpoint, int], answers: Answers[Backtrace]) -> list[tuple[int, Backtrace]]:
    """The stacks by rank; by PID where a rank is not known yet, or several have it."""
    found = []
    known = Counter(ranks.get(endpoint, taken.rank) for endpoint, taken in answers.answered)
    for endpoint, taken in answers.answered:
        rank = ranks.get(endpoint, taken.rank)
        if rank is None or (known[rank] > 1 and isinstance(endpoint, LocalProcess)):
            assert isinstance(endpoint, LocalProcess)  # all others are known by their rank
            why = "its rank is not known yet" if rank is None else f"another is rank {rank}, too"
            remark(f"pid {endpoint.pid}: {why}, so its PID stands for it")
            rank = endpoint.pid
        found.append((rank, taken))
    return found


def _ask(session: Session, all_threads: bool, timeout_s: float) -> tuple[dict[Endpoint, int], Answers[Backtrace]]:
    """The ranks as far as their host servers know them, and the stacks."""
    from probe_agent.wire import Backtrace

    async def question(client: Client) -> Backtrace:
        return await client.get(Backtrace, "/v1/backtrace", all=str(all_threads).lower())

    are_processes = session.named and all(isinstance(endpoint, LocalProcess) for endpoint in session.named)
    if are_processes and not session.everyone and not session.ranks:
        # Asked as they are: their stacks can be read without an agent, too.
        return {}, session.ask(question, timeout_s=timeout_s, needs_agent=False)
    members = session.ranks_of_job()
    ranks = {endpoint: member.rank for endpoint, member in members.answered}
    return ranks, session.ask_members(question, timeout_s=timeout_s, members=members)


def _say_notes(notes: dict[str, list[int]]) -> None:
    from .text import num_ranks

    for note, those in list(notes.items())[:MAX_SAID]:
        remark(f"{num_ranks(those)}: {note}")
    others = {rank for those in list(notes.values())[MAX_SAID:] for rank in those}
    if others:
        remark(f"{num_ranks(others)}: more remarks, which --json has")
