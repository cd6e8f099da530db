"""`probe … watch-var`: the values of expressions, from step to step."""

from __future__ import annotations

import contextlib
import json

import click

from probe_agent.errors import NoAnswer
from probe_agent.wire import WatchLine, WatchRequest
from probe_cli.client import Client
from probe_cli.messages import remark
from probe_cli.session import Session

__all__ = ["command"]

COLUMNS = ("step", "ts", "expression", "value", "text", "error")


@click.command("watch-var")
@click.argument("expressions", nargs=-1, required=True, metavar="EXPRESSION…")
@click.option("--every", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Every Nth step.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="End after N evaluations.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.pass_obj
def command(session: Session, expressions: tuple[str, ...], every: int, count: int | None, as_json: bool) -> int:
    """Evaluate each EXPRESSION on the training thread, between two steps, with the names that eval finds; until Ctrl-C.

    Numbers and texts are printed as they come, and are rows of python.variables afterwards. An expression that fails
    three times is dropped. Example: probe PID watch-var trainer.current_step 'loss.item()' --every 10
    """
    request = WatchRequest(expressions, every, count)
    width = max(map(len, expressions))

    async def question(client: Client) -> bool:
        of = f"{client.endpoint}: " if session.num_endpoints > 1 else ""
        answer = client.lines(WatchLine, "/v1/watch", request)
        async with contextlib.aclosing(answer) as lines:  # type: ignore[type-var]  # a generator, as its type does not say
            async for line in lines:
                if line.note:
                    remark(of + line.note)
                for row in line.rows or ():
                    _show(dict(zip(COLUMNS, row, strict=True)), str(client.endpoint), of, width, as_json)
                if line.done and line.state == "finished":
                    return True
        raise NoAnswer(f"{client.endpoint} broke off: the process ended, or was detached", "see: probe list --dead")

    return session.ask(question, timeout_s=None, doing="").exit_code


def _show(row: dict[str, object], endpoint: str, of: str, width: int, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"endpoint": endpoint, **row}, ensure_ascii=False))
        return
    value = row["value"]
    if row["error"] is not None:
        shown = f"! {row['error']}"
    elif value is None:
        shown = str(row["text"])
    else:
        shown = f"{value:.9g}" if isinstance(value, float) else str(value)
    click.echo(f"{of}step {row['step']:>8}  {row['expression']!s:<{width}}  {shown}")
