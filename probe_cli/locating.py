"""Where the targets are, asked and shown: what `backtrace` does, and `inject` when the agent has to wait.

Runs in the CLI.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .session import Session, remark

if TYPE_CHECKING:
    from probe_agent.wire import Backtrace

    from .client import Client

__all__ = ["show_stacks"]


def show_stacks(session: Session, *, all_threads: bool, as_json: bool, timeout_s: float, outside: bool = False) -> int:
    """Ask every endpoint for its stacks, and write them; with `outside` no recorder is waited for."""
    from probe_agent.wire import Backtrace

    from .render.show import heading
    from .render.stacks import stack_json, stack_lines
    from .render.terminal import wants_colour

    async def question(client: Client) -> Backtrace:
        flags = {"all": all_threads, "outside": outside}
        return await client.get(Backtrace, "/v1/backtrace", **{name: str(on).lower() for name, on in flags.items()})

    answers = session.ask(question, timeout_s=timeout_s, needs_agent=False)
    if as_json:
        print(stack_json(answers.answered, as_list=answers.num_asked > 1))
        return answers.exit_code
    for at, (endpoint, backtrace) in enumerate(answers.answered):
        if answers.num_asked > 1:
            heading(str(endpoint), first=at == 0)
        sys.stdout.writelines(line + "\n" for line in stack_lines(backtrace, wants_colour(sys.stdout)))
        for note in backtrace.notes:
            remark(note)
    return answers.exit_code
