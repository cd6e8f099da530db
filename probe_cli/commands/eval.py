"""`probe … eval`: runs Python in the target and streams its output; with --all and --at-step on all ranks at once."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import click

from probe_agent.errors import BadRequest
from probe_agent.wire import EvalRequest
from probe_cli.client.loop import run
from probe_cli.cluster.ranks.listing import Rank
from probe_cli.cluster.two_phase.coordinator import NothingRan, Part, run_together
from probe_cli.endpoint import Endpoint
from probe_cli.messages import print_error, remark
from probe_cli.options import text_from, timeout_option
from probe_cli.render.show import heading
from probe_cli.repl.evaluate import evaluate, print_output
from probe_cli.session import Session
from probe_cli.text import num_ranks, ranks_text

__all__ = ["command"]


@click.command("eval")
@click.argument("code", required=False)
@click.option("-f", "--file", "path", metavar="FILE", help="Read the code from FILE (- is stdin).")
@click.option("--session", "name", metavar="NAME", help="Keep what the code assigns, for the next eval with NAME.")
@timeout_option(None, "Stop the code in the target after this long.")
@click.option(
    "--at-step",
    "at_step",
    is_flag=False,
    flag_value="next",
    metavar="[N|next]",
    help="Run it on the training thread when step N, or the next one, has ended.",
)
@click.pass_obj
def command(
    session: Session,
    code: str | None,
    path: str | None,
    name: str | None,
    timeout_s: float | None,
    at_step: str | None,
) -> int:
    """Run CODE in the target, on a thread of its own, with the names of the script as a debugger would find them, then
    those in the frames of libraries, such as a framework's Trainer; a remark says where a name was found.

    The value of a last expression is shown. Ctrl-C stops the code in the target. Exit code 1 if it raised.

    With --all and --at-step all ranks of the job run it after the same step, on which they agree first, so that
    collectives in it are safe. If one rank cannot take part, none runs it.
    """
    if at_step is not None and not re.fullmatch("next|[0-9]+", at_step):
        if code is not None:
            raise BadRequest(f"invalid step {at_step!r} for --at-step", "use a number, or next")
        code, at_step = at_step, "next"  # `--at-step CODE`
    if at_step is not None and (session.everyone or session.ranks or at_step != "next"):
        if name is not None:
            raise BadRequest(
                "--session and a step of all ranks exclude each other: a session belongs to one target",
                "leave out --session",
            )
        at = None if at_step == "next" else int(at_step)
        return _on_all_ranks(session, text_from(code, path, "the code"), at, timeout_s)
    request = EvalRequest(text_from(code, path, "the code"), name, timeout_s, at_step is not None)
    # The target enforces the limit; a target that cannot is given up a little later.
    answers = session.ask(
        lambda client: evaluate(client, request, live=session.num_endpoints == 1),
        timeout_s=None if timeout_s is None else timeout_s + 5,
        doing="running the code" if session.num_endpoints > 1 else "",
    )
    for at_, (endpoint, outcome) in enumerate(answers.answered):
        if answers.num_asked > 1:
            heading(str(endpoint), first=at_ == 0)
        outcome.show_what_was_kept()
    return answers.exit_code or max((outcome.exit_code for _, outcome in answers.answered), default=0)


def _on_all_ranks(session: Session, code: str, at: int | None, timeout_s: float | None) -> int:
    """Run `code` after step `at` (None: the earliest) on every rank of the job, or on those that were named, and show
    what came of it."""
    found = session.ranks_of_job()
    if found.unanswered:
        remark("the code ran nowhere, because these ranks did not answer")
        return found.exit_code
    _check_ranks(found.answered, session.everyone and not session.ranks)
    ranks = [(member.rank, endpoint) for endpoint, member in found.answered]
    parts = run(run_together(ranks, code, at=at, timeout_s=timeout_s, remark=remark), ctrl_c=False)
    for at_, (same_ranks, output) in enumerate(_folded(parts)):
        if len(parts) > 1:
            heading(f"rank{'s' if len(same_ranks) > 1 else ''} {ranks_text(same_ranks)}", first=at_ == 0)
        for stream, text in output:
            print_output(stream, text)
    sys.stdout.flush()
    broken = [(part.rank, part.error) for part in parts if part.error is not None]
    for rank, error in broken:
        print_error(error, of=f"rank {rank}")
    return 3 if broken else int(any(part.state != "finished" for part in parts))


def _check_ranks(members: Sequence[tuple[Endpoint, Rank]], whole_job: bool) -> None:
    """Raise when these are not the ranks of one job, or not all of them."""
    ranks = Counter(member.rank for _, member in members)
    twice = [(endpoint, member) for endpoint, member in members if ranks[member.rank] > 1]
    if twice:
        named = "\n".join(f"  {at}  rank {one.rank}  {' '.join(one.info.command)}" for at, one in twice[:16])
        raise BadRequest(
            f"these ranks belong to several jobs, which have no step in common:\n{named}", "name the ranks of one job"
        )
    missing = set(range(max(member.info.world_size for _, member in members))) - set(ranks)
    if whole_job and missing:
        raise NothingRan(
            f"the code ran nowhere: {num_ranks(missing)} of the job cannot be reached by these endpoints",
            "name the hosts of all ranks: -t HOST:PORT -t …; list the ranks that have a recorder: probe … ranks",
            3,
        )


def _folded(parts: Sequence[Part]) -> Iterator[tuple[list[int], list[tuple[str, str]]]]:
    """The ranks with equal output, and that output."""
    same: dict[tuple[object, ...], list[Part]] = {}
    for part in parts:
        same.setdefault((part.state, part.error is None, *part.output), []).append(part)
    for alike in same.values():
        yield [part.rank for part in alike], alike[0].output
