"""One file a verb: `commands/NAME.py` defines `command`, and adding a command is adding that file (`_` stands for `-`).

A command's file imports only click and light modules of ours at the top, so that `probe --help` can read
them all; whatever is heavy it imports when it runs.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache

import click

__all__ = ["load", "names", "near"]


@cache
def names() -> list[str]:
    """All commands, sorted."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def load(name: str) -> click.Command:
    """The command called `name`."""
    command = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").command
    assert isinstance(command, click.Command)
    return command


def near(name: str) -> str:
    """Commands that `name` may be a misspelling of, as text; empty when nothing comes near."""
    return " or ".join(difflib.get_close_matches(name, names(), n=2, cutoff=0.6))
