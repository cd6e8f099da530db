"""`probe … config`: the recorder's settings, shown and changed while it runs."""

from __future__ import annotations

import difflib

import click

from probe_agent.errors import BadRequest
from probe_agent.wire import SettingChanges, SettingList
from probe_cli.client import Client
from probe_cli.options import format_option, timeout_option
from probe_cli.render import Sheet
from probe_cli.render.show import is_brief, show_answers
from probe_cli.session import Session

__all__ = ["command"]


@click.command("config")
@click.argument("items", nargs=-1, metavar="[NAME | NAME=VALUE]…")
@click.option("--long", "is_long", is_flag=True, help="On a terminal, too: the environment variable of each setting.")
@format_option()
@timeout_option(10.0, "How long to wait for the answer.")
@click.pass_obj
def command(session: Session, items: tuple[str, ...], is_long: bool, format_: str, timeout_s: float) -> int:
    """Show all settings, those called NAME, or change them with NAME=VALUE; a change applies at once.

    A value stays until NAME=default resets it."""
    changes = dict(item.split("=", 1) for item in items if "=" in item)
    wanted = [item.partition("=")[0] for item in items]

    async def question(client: Client) -> SettingList:
        if changes:
            return await client.send(SettingList, "PATCH", "/v1/config", SettingChanges(changes))
        return await client.get(SettingList, "/v1/config")

    answers = session.ask(question, timeout_s=timeout_s)
    sheets, notes = [], []
    for endpoint, listed in answers.answered:
        _check_names(wanted, [setting.name for setting in listed.settings])
        settings = [setting for setting in listed.settings if not wanted or setting.name in wanted]
        rows = [
            (
                setting.name,
                setting.value,
                setting.in_force or setting.value,
                setting.default,
                setting.unit,
                setting.meaning,
                setting.env,
            )
            for setting in settings
        ]
        columns = ("name", "value", "in_force", "default", "unit", "meaning", "env")
        sheet = Sheet(columns, ("VARCHAR",) * 7, rows, prose="meaning")
        sheets.append((endpoint, sheet.without("env") if is_brief(format_) and not is_long else sheet))
        reasons = [f"{one.name}={one.in_force} is in force: {one.why}" for one in settings if one.why]
        notes += [(endpoint, note) for note in (*reasons, *listed.notes)]
    show_answers(answers, sheets, format_, notes)
    return answers.exit_code


def _check_names(wanted: list[str], known: list[str]) -> None:
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=2, cutoff=0.4)
            raise BadRequest(
                f"there is no setting {name!r}",
                f"use {' or '.join(near)}" if near else "list the settings with: probe … config",
            )
