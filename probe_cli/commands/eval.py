"""`probe … eval`: runs Python in the target and streams what it prints."""

from __future__ import annotations

import click

from probe_cli.options import text_from, timeout_option
from probe_cli.session import Session

__all__ = ["command"]


@click.command("eval", short_help="Run Python in the target; shows what it prints.")
@click.argument("code", required=False)
@click.option("-f", "--file", "path", metavar="FILE", help="Read the code from FILE (- is stdin).")
@click.option("--session", "name", metavar="NAME", help="Keep what the code assigns, for the next eval with NAME.")
@timeout_option(None, "Stop the code in the target after so long.")
@click.option("--at-step", is_flag=True, help="Run it on the training thread, between two steps.")
@click.pass_obj
def command(
    session: Session, code: str | None, path: str | None, name: str | None, timeout_s: float | None, at_step: bool
) -> int:
    """Run CODE in the target, on a thread of ours, with the names of the script as a debugger would find them.

    The value of a last expression is shown. Ctrl-C stops the code in the target. Exit code 1 when it raised.
    """
    from probe_agent.wire import EvalRequest
    from probe_cli.evaluating import evaluate
    from probe_cli.render.show import heading

    request = EvalRequest(text_from(code, path, "the code"), name, timeout_s, at_step)
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
