"""`probe … backtrace`: where the target is, with the source line of every frame; or all ranks, as one tree."""

from __future__ import annotations

import json
import sys
from collections import Counter
from functools import partial

import click

from probe_agent.errors import BadRequest
from probe_agent.wire import Backtrace
from probe_cli.cluster.fanout import Answers
from probe_cli.cluster.stacks import ask_stacks, fold, threads_of
from probe_cli.endpoint import Endpoint, LocalProcess
from probe_cli.messages import remark
from probe_cli.options import timeout_option
from probe_cli.render.show import who_answered
from probe_cli.render.stacks import branch_json, show_stacks, tree_lines
from probe_cli.render.terminal import wants_colour
from probe_cli.session import Session
from probe_cli.text import num_ranks

__all__ = ["command"]

#: At most this many different remarks are written out.
MAX_SAID = 8


@click.command("backtrace")
@click.option("--all", "all_threads", is_flag=True, help="All threads, not only the main one.")
@click.option("--all-ranks", is_flag=True, help="All ranks behind the endpoints, folded into a tree.")
@click.option(
    "--native", is_flag=True, help="With C and C++ frames; the target stands still for some tenths of a second."
)
@click.option("--locals", "with_locals", is_flag=True, help="With local variables.")
@click.option("--tasks", is_flag=True, help="With asyncio tasks and greenlets.")
@click.option("--workers", is_flag=True, help="With the stacks of its DataLoader workers.")
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON; an envelope if several were asked.")
@timeout_option(10.0, "How long to wait for the answer.")
@click.pass_obj
def command(
    session: Session,
    all_threads: bool,
    all_ranks: bool,
    native: bool,
    with_locals: bool,
    tasks: bool,
    workers: bool,
    as_json: bool,
    timeout_s: float,
) -> int:
    """Show where the target is: every frame with the line being executed and its source text.

    Behind the name of each thread stands what the kernel says of it: its state, the system call it is in, and the
    kernel function it waits in.

    Also works while a C call holds the GIL, and with --no-inject on a process without a recorder: the stacks are then
    read from outside, and a remark says so, and who holds the GIL.

    --native stops the target while C and C++ frames are read, and says for how long. --locals shows numbers and short
    texts, tensors as shape, dtype and device, and of other objects the type; no code of the job runs for it, and
    secrets are replaced by ***. Both need the full token.
    """
    if all_ranks and (with_locals or tasks or workers):
        raise BadRequest(
            "--locals, --tasks and --workers are about single targets, and --all-ranks folds all into one tree",
            "ask each rank: probe -t ENDPOINT --all backtrace --locals",
        )
    question = partial(
        ask_stacks, all_threads=all_threads, native=native, with_locals=with_locals, tasks=tasks, workers=workers
    )
    if not all_ranks:
        answers = session.ask(question, timeout_s=timeout_s, needs_agent=False)
        show_stacks(answers, as_json=as_json)
        return answers.exit_code
    are_processes = session.named and all(isinstance(endpoint, LocalProcess) for endpoint in session.named)
    if are_processes and not session.everyone and not session.ranks:
        # Asked as they are: their stacks can be read without a recorder, too.
        ranks, answers = {}, session.ask(question, timeout_s=timeout_s, needs_agent=False)
    else:
        found = session.ranks_of_job()
        ranks = {endpoint: one.rank for endpoint, one in found.answered}
        answers = session.ask_ranks(question, timeout_s=timeout_s, ranks=found)
    _show_tree(ranks, answers, all_threads=all_threads, as_json=as_json)
    return answers.exit_code


def _show_tree(ranks: dict[Endpoint, int], answers: Answers[Backtrace], *, all_threads: bool, as_json: bool) -> None:
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
            "tree": [branch_json(branch) for branch in tree],
            "notes": [{"ranks": those, "note": note} for note, those in notes.items()],
            **who_answered(answers),
        }
        print(json.dumps(answer, indent=1, ensure_ascii=False))
        return
    sys.stdout.writelines(line + "\n" for line in tree_lines(tree, wants_colour(sys.stdout)))
    sys.stdout.flush()
    for note, those in list(notes.items())[:MAX_SAID]:
        remark(f"{num_ranks(those)}: {note}")
    others = {rank for those in list(notes.values())[MAX_SAID:] for rank in those}
    if others:
        remark(f"{num_ranks(others)}: more remarks; list them with --json")


def _numbered(ranks: dict[Endpoint, int], answers: Answers[Backtrace]) -> list[tuple[int, Backtrace]]:
    """The stacks by rank; by PID where a rank is not known yet, or several have it."""
    found = []
    known = Counter(ranks.get(endpoint, taken.rank) for endpoint, taken in answers.answered)
    for endpoint, taken in answers.answered:
        rank = ranks.get(endpoint, taken.rank)
        if rank is None or (known[rank] > 1 and isinstance(endpoint, LocalProcess)):
            assert isinstance(endpoint, LocalProcess)  # all others are known by their rank
            why = "its rank is not known yet" if rank is None else f"another process is rank {rank}, too"
            remark(f"pid {endpoint.pid} is shown by its PID: {why}")
            rank = endpoint.pid
        found.append((rank, taken))
    return found
