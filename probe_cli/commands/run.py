"""`probe run`: starts a command with the recorder in it from the beginning."""

from __future__ import annotations

import os
import sys

import click

import probe_agent
from probe_agent.errors import BadRequest

__all__ = ["command"]


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND…")
def command(arguments: tuple[str, ...]) -> None:
    """Start COMMAND with the recorder in it (PROBE=1 and a start file in PYTHONPATH); needs no attach.

    Set PROBE=all to record the children of its processes too; PROBE_SCRIPT, PROBE_RANKS and PROBE_LISTEN apply.

    The command replaces this process: its exit code and its signals are its own. A name that ends in .py is run by
    `python`.
    """
    words = ["python", *arguments] if arguments[0].endswith(".py") else list(arguments)
    start = os.path.join(os.path.dirname(os.path.abspath(probe_agent.__file__)), "activate", "path")
    paths = [start, *filter(None, [os.environ.get("PYTHONPATH")])]
    asked = os.environ.get("PROBE", "0")
    environment = {
        **os.environ,
        "PROBE": "1" if asked in ("", "0") else asked,
        "PYTHONPATH": os.pathsep.join(paths),
        "PROBE_SERVER_PYTHON": sys.executable,  # it has what a host server needs, which the command's may lack
    }
    try:
        os.execvpe(words[0], words, environment)
    except OSError as refusal:
        raise BadRequest(f"cannot start {words[0]!r}: {refusal.strerror}", "check the name and the PATH") from refusal
