"""`probe list`: the targets of a host, and the processes that could become targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from probe_cli.options import format_option, timeout_option
from probe_cli.session import Session, remark

if TYPE_CHECKING:
    from probe_agent.wire import Candidate, TargetList
    from probe_cli.client import Client
    from probe_cli.render import Sheet

__all__ = ["command"]


@click.command("list", short_help="List targets: PID, rank, step, state, age, command line.")
@format_option()
@timeout_option(10.0, "How long to wait for the answer.")
@click.pass_obj
def command(session: Session, format_: str, timeout_s: float) -> int:
    """List the targets of this host (or of the named host servers), then Python processes without an agent.

    Processes that look like a training come first among those.
    """
    from probe_cli.client import open_host
    from probe_cli.client.loop import run
    from probe_cli.endpoint import LocalProcess
    from probe_cli.render.show import show, show_each

    async def of_this_host() -> TargetList:
        async with open_host() as client:
            return await _question(client)

    # A PID, perhaps from $PROBE_ENDPOINT, is on this host; a host server may be anywhere.
    session.named = tuple(endpoint for endpoint in session.named if not isinstance(endpoint, LocalProcess))
    if not session.named:
        show(_sheet(run(of_this_host()), format_), format_, remark)
        return 0
    answers = session.ask(_question, timeout_s=timeout_s, of_many=True)
    show_each([(endpoint, _sheet(listed, format_)) for endpoint, listed in answers.answered], format_, remark)
    return answers.exit_code


async def _question(client: Client) -> TargetList:
    from probe_agent.wire import TargetList

    return await client.get(TargetList, "/v1/targets", candidates="true")


def _sheet(listed: TargetList, format_: str) -> Sheet:
    from probe_cli.render import Sheet
    from probe_cli.render.units import age

    def shown(age_s: float | None) -> object:
        return age(age_s) if format_ == "table" else age_s

    rows: list[tuple[object, ...]] = [
        (target.pid, target.rank, target.step, target.state, shown(target.age_s), " ".join(target.command))
        for target in sorted(listed.targets, key=lambda target: not target.alive)  # otherwise as they come
    ]
    for candidate in sorted(listed.candidates, key=_unlike_training):
        rows.append((candidate.pid, None, None, "no agent", shown(candidate.age_s), " ".join(candidate.command)))
    return Sheet(
        ("pid", "rank", "step", "state", "age" if format_ == "table" else "age_s", "command"),
        ("BIGINT", "BIGINT", "BIGINT", "VARCHAR", "VARCHAR", "VARCHAR"),
        rows,
    )


def _unlike_training(candidate: Candidate) -> tuple[bool, int]:
    command = " ".join(candidate.command)
    words = ("train", "torch", "pretrain", "finetune", "deepspeed", "accelerate", "serve", "vllm")
    return not any(word in command for word in words), candidate.pid
