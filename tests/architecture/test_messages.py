"""Errors, remarks and help as users read them: each says what to try, asks nothing, fits, and keeps to the glossary."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from probe_agent import errors
from probe_cli import commands
from probe_cli.main import cli
from tests.architecture.glossary import violations

ROOT = Path(__file__).parents[2]
CLI = sorted(ROOT.glob("probe_cli/**/*.py"))
#: The classes of our errors, and those of the command line that add to them.
ERRORS = {*errors.__all__, "Incomplete", "NoSuchJob", "NothingRan"}
#: Calls that print, besides errors.
REMARKS = {"remark", "_remark"}
FILES = [*CLI, *sorted(ROOT.glob("probe_agent/**/*.py"))]


def calls(path: Path, names: set[str]) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in names:
                yield node


def literal(node: ast.AST) -> str:
    """The words of ours in an expression; what comes from elsewhere is left out."""
    constants = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return "".join(value for value in constants if isinstance(value, str))


def complaints(path: Path) -> Iterator[str]:
    for call in calls(path, ERRORS):
        hints = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "hint")]
        if any(isinstance(argument, ast.Starred) for argument in call.args):
            continue  # made elsewhere, where it is looked at
        if not hints or any(isinstance(hint, ast.Constant) and not hint.value for hint in hints):
            yield f"{path.relative_to(ROOT)}:{call.lineno}: no hint: {ast.unparse(call)}"
    for call in calls(path, ERRORS | REMARKS):
        if any("?" in literal(argument) for argument in call.args):
            yield f"{path.relative_to(ROOT)}:{call.lineno}: a question: {ast.unparse(call)}"


def test_an_error_says_what_to_try_and_asks_nothing() -> None:
    assert "\n".join(complaint for path in FILES for complaint in complaints(path)) == ""


def test_the_command_line_keeps_to_the_glossary() -> None:
    found = {str(path.relative_to(ROOT)): violations(path.read_text(encoding="utf-8")) for path in CLI}

    assert {path: words for path, words in found.items() if words} == {}


@pytest.mark.parametrize("name", ["", *commands.names()])
def test_help_fits_80_columns_and_keeps_to_the_glossary(name: str) -> None:
    command = commands.load(name) if name else cli
    context = click.Context(command, info_name=f"probe {name}".strip(), terminal_width=80)

    text = command.get_help(context)

    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert violations(text) == []
    assert "?" not in text
