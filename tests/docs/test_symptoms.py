"""docs/symptoms.md names only what exists, and every rule."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from probe_agent.sql.tables.declarations import known_tables
from probe_cli import commands
from probe_cli.diagnose import rules

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "symptoms.md"
CODE = re.compile(r"`([^`]+)`")
COMMAND = re.compile(r"probe (?:… )?([a-z-]+)(?: |$)")
TABLE = re.compile(r"[a-z]+\.[a-z_]+")


def rows() -> Iterator[tuple[str, str, str]]:
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 3 and cells[0] != "symptom or question":
            yield cells[0], cells[1], cells[2]


def names(cell: str) -> list[str]:
    return [name for name in CODE.findall(cell) if name != "job.NAME" and "probe_agent" not in name]


def kind_of(name: str) -> str:
    return "command" if name.startswith("probe ") else "table" if TABLE.fullmatch(name) else "rule"


def test_every_command_table_and_rule_exists() -> None:
    named = {name for _, answer, _ in rows() for name in names(answer)}
    of_kind = {kind: {name for name in named if kind_of(name) == kind} for kind in ("command", "table", "rule")}

    verbs = {match[1] for name in of_kind["command"] if (match := COMMAND.match(name))}
    assert len(verbs) > 10
    assert verbs <= set(commands.names())
    assert of_kind["table"] <= known_tables([]).keys()
    assert of_kind["rule"] <= rules().keys()


def test_every_rule_has_a_symptom() -> None:
    named = {name for _, answer, _ in rows() for name in names(answer)}

    assert rules().keys() <= named


@pytest.mark.torch
def test_every_trial_exists_and_shows_one_of_the_rules_of_its_row() -> None:
    faults = importlib.import_module("faults")
    for module in pkgutil.iter_modules(faults.__path__):
        if module.name.endswith("_faults"):
            importlib.import_module(f"faults.{module.name}")
    gallery = importlib.import_module("faults.gallery").FAULTS

    for symptom, answer, trial in rows():
        assert trial, symptom
        for name in names(trial):
            if name.startswith("tests/"):
                assert (ROOT / name).exists(), symptom
            else:
                assert name in gallery, f"{symptom}: no program of the gallery is called {name}"
                assert gallery[name].rule in names(answer), f"{symptom}: {name} is of {gallery[name].rule}"


def test_every_symptom_has_one_row() -> None:
    symptoms = [symptom for symptom, _, _ in rows()]

    assert len(symptoms) > 90
    assert len(symptoms) == len(set(symptoms))
