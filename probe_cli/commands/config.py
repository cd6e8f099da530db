"""`probe … config`: the recorder's settings, shown and changed while it runs."""

from __future__ import annotations

import click

from probe_cli.options import format_option, timeout_option
from probe_cli.session import Session, remark

__all__ = ["command"]


@click.command("config", short_help="Show or change the recorder's settings.")
@click.argument("items", nargs=-1, metavar="[NAME | NAME=VALUE]…")
@click.option("--long", "is_long", is_flag=True, help="On a terminal, too: the environment variable of each setting.")
@format_option()
@timeout_option(10.0, "How long to wait for the answer.")
@click.pass_obj
def command(session: Session, items: tuple[str, ...], is_long: bool, format_: str, timeout_s: float) -> int:
    """Show all settings, those called NAME, or change them with NAME=VALUE; a change holds at once.

    What is set holds until NAME=default takes it back."""
    import difflib

    from probe_agent.errors import BadRequest
    from probe_agent.wire import SettingChanges, SettingList
    from probe_cli.client import Client
    from probe_cli.render import Sheet
    from probe_cli.render.show import is_brief, show_each

    changes = dict(item.split("=", 1) for item in items if "=" in item)
    wanted = [item.partition("=")[0] for item in items]

    async def question(client: Client) -> SettingList:
        if changes:
            return await client.send(SettingList, "PATCH", "/v1/config", SettingChanges(changes))
        return await client.get(SettingList, "/v1/config")

    answers = session.ask(question, timeout_s=timeout_s)
    sheets = []
    for endpoint, listed in answers.answered:
        known = [setting.name for setting in listed.settings]
        for name in wanted:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=2, cutoff=0.4)
                raise BadRequest(
                    f"there is no setting {name!r}",
                    f"did you mean {' or '.join(near)}?" if near else "see: probe … config",
                )
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
            for setting in listed.settings
            if not wanted or setting.name in wanted
        ]
        columns = ("name", "value", "in_force", "default", "unit", "meaning", "env")
        sheet = Sheet(columns, ("VARCHAR",) * 7, rows, prose="meaning")
        sheets.append((endpoint, sheet.without("env") if is_brief(format_) and not is_long else sheet))
    show_each(sheets, format_, remark)
    for endpoint, listed in answers.answered:
        reasons = [
            f"{setting.name}={setting.in_force} is in force: {setting.why}"
            for setting in listed.settings
            if setting.why and (not wanted or setting.name in wanted)
        ]
        for note in (*reasons, *listed.notes):
            remark(note if answers.num_asked == 1 else f"{endpoint}: {note}")
    return answers.exit_code
