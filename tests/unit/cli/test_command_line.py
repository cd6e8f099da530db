"""Endpoints told from commands."""

from __future__ import annotations

import pkgutil

import click
import pytest

from probe_cli import commands, suggest
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
        ("4121 qurey", "try: query"),
        ("qurey", "try: query"),
        ("health", "'health' is not a command\ntry: status, list or diagnose\n  status    Show how the job"),
        ("4121 HEALTH", "try: status, list or diagnose\n"),
        ("4121 stack", "try: backtrace\n  backtrace  Show where"),
        ("localhost query x", "no port"),
        ("/tmp/no-such-report.zip query x", "'/tmp/no-such-report.zip' is not an endpoint: there is no such file"),
        ("4121 4122 query x", "'4122' is not a command"),
        ("-t nonsense query x", "not an endpoint"),
        ("4121 query --max-rows many x", "not a valid integer"),
        (
            "4121 query --max-row 1 x",
            "probe: no such option: --max-row\ntry: --max-rows or --max-transfer or probe query --help\n",
        ),
        ("list --no-such-option", "probe: no such option: --no-such-option\ntry: probe list --help\n"),
        ("clean --older-than x", "probe: invalid duration 'x' for --older-than\ntry: use 90, 15m, 12h or 7d\n"),
        ("--rank 3-1 ranks", "probe: invalid ranks '3-1' for --rank\ntry: use ranks and ranges"),
    ],
)
def test_wrong_usage_is_explained_and_exits_with_2(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(line.split())

    assert code == 2
    assert said in capsys.readouterr().err


def test_the_words_of_other_tools_lead_to_commands_that_exist() -> None:
    known = set(commands.names())

    assert not known & set(suggest._WORDS)
    assert {name for meant in suggest._WORDS.values() for name in meant} <= known


def test_every_file_of_a_command_has_one_line_of_help_and_defines_it() -> None:
    files = {module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__)}

    assert files == set(commands.SHORT_HELP)
    for name, line in commands.SHORT_HELP.items():
        command = commands.load(name)
        assert command.name == name
        assert command.help
        assert 10 < len(line) < 60


def test_an_unknown_variable_is_reported_with_the_right_one(monkeypatch, capsys) -> None:
    monkeypatch.setenv("PROBE_ENDPONT", "1")

    run(["tables", "--no-such-option"])

    assert "PROBE_ENDPONT is ignored: unknown variable\ntry: set PROBE_ENDPOINT\n" in capsys.readouterr().err
