"""Endpoints told from commands."""

from __future__ import annotations

import click
import pytest

from probe_cli import commands
from probe_cli.endpoint import LocalProcess, TcpServer
from probe_cli.main import cli, run
from probe_cli.session import Session


def session_of(monkeypatch: pytest.MonkeyPatch, *args: str) -> Session:
    """Return what the command `tables` receives when `probe ARGS` runs; it does nothing else."""
    handed: list[Session] = []

    @click.command("tables")
    @click.pass_obj
    def tables(session: Session) -> None:
        handed.append(session)

    load = commands.load
    monkeypatch.setattr(commands, "load", lambda name: tables if name == "tables" else load(name))
    cli.main(list(args), standalone_mode=False)
    return handed[0]


def test_an_endpoint_comes_before_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert session_of(monkeypatch, "4121", "tables").named == (LocalProcess(4121),)


def test_several_targets_come_as_options(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(monkeypatch, "-t", "4121", "-t", "[::1]:80", "-t", "4121", "tables")

    assert session.named == (LocalProcess(4121), TcpServer("::1", 80))


def test_the_endpoint_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_ENDPOINT", "h:1")

    assert session_of(monkeypatch, "tables").named == (TcpServer("h", 1),)
    assert session_of(monkeypatch, "7", "tables").named == (LocalProcess(7),)


def test_options_may_stand_on_both_sides_of_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not session_of(monkeypatch, "--no-inject", "4121", "tables").inject
    assert not session_of(monkeypatch, "4121", "--no-inject", "tables").inject


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("4121 qurey", "did you mean query"),
        ("qurey", "did you mean query"),
        ("status", "'status' is no command; did you mean list, backtrace or query?\n  list       List targets"),
        ("4121 STATUS", "did you mean list, backtrace or query?"),
        ("4121 stack", "did you mean backtrace?\n  backtrace  Show where"),
        ("4121", "probe 4121 backtrace"),
        ("localhost query x", "no port"),
        ("4121 4122 query x", "'4122' is no command"),
        ("-t nonsense query x", "not an endpoint"),
        ("4121 query --max-rows many x", "not a valid integer"),
    ],
)
def test_wrong_usage_is_explained_and_exits_with_2(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(line.split())

    assert code == 2
    assert said in capsys.readouterr().err


def test_the_words_of_other_tools_lead_to_commands_that_exist() -> None:
    known = set(commands.names())

    assert not known & set(commands._WORDS)
    assert {name for meant in commands._WORDS.values() for name in meant} <= known


def test_every_command_has_one_line_of_help() -> None:
    for name in commands.names():
        command = commands.load(name)
        assert command.name == name
        assert 10 < len(command.get_short_help_str(200)) < 60


def test_a_variable_that_nobody_reads_is_named_with_the_right_one(monkeypatch, capsys) -> None:
    monkeypatch.setenv("PROBE_ENDPONT", "1")

    run(["tables", "--no-such-option"])

    assert "PROBE_ENDPONT is ignored: there is no such variable\ntry: set PROBE_ENDPOINT\n" in capsys.readouterr().err
