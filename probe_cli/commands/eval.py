"""`probe … eval`: runs Python in the target and streams what it prints."""

from __future__ import annotations

import re

import click

from probe_cli.options import text_from, timeout_option
from probe_cli.session import Session

__all__ = ["command"]


@click.command("eval", short_help="Run Python in the target; shows what it prints.")
@click.argument("code", required=False)
@click.option("-f", "--file", "path", metavar="FILE", help="Read the code from FILE (- is stdin).")
@click.option("--session", "name", metavar="NAME", help="Keep what the code assigns, for the next eval with NAME.")
@timeout_option(None, "Stop the code in the target after so long.")
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
    """Run CODE in the target, on a thread of ours, with the names of the script as a debugger would find them, then
    those in the frames of libraries, such as a framework's Trainer; a remark says where a name was found.

    The value of a last expression is shown. Ctrl-C stops the code in the target. Exit code 1 when it raised.

    With --all and --at-step every rank of the job runs it after the same step, which they agree on beforehand, so that
    collectives in it are safe. If some rank cannot take part, none runs it.
    """
    if at_step is not None and not re.fullmatch("next|[0-9]+", at_step):
        if code is not None:
            raise click.UsageError(f"{at_step!r} is no step to wait for: a number, or next")
        code, at_step = at_step, "next"  # `--at-step CODE`
    if at_step is not None and (session.everyone or session.ranks or at_step != "next"):
        from probe_cli.agreeing import evaluate_together

        if name is not None:
            raise click.UsageError("--session and an agreed step do not go together: a session is of one target")
        at = None if at_step == "next" else int(at_step)
        text = text_from(code, path, "the code")
        return evaluate_together(session, text, at, timeout_s)

    from probe_agent.wire import EvalRequest
    from probe_cli.render.show import heading
    from probe_cli.repl.evaluate import evaluate

    request = EvalRequest(text_from(code, path, "the code"), name, timeout_s, at_step is not None)
    # The target enforces the limit; a little later we stop waiting for a target that cannot.
    answers = session.ask(
        lambda client: evaluate(client, request, live=session.num_endpoints == 1),
        timeout_s=None if timeout_s is None else timeout_s + 5,
    )
    for at, (endpoint, outcome) in enumerate(answers.answered):
        if answers.num_asked > 1:
            heading(str(endpoint), first=at == 0)
        outcome.show_what_was_kept()
    return answers.exit_code or max((outcome.exit_code for _, outcome in answers.answered), default=0)
