"""One file a verb: `commands/NAME.py` defines `command`, its whole body included (`_` stands for `-`).

A command is loaded when it runs, and imports all it needs at the top. The line that `probe --help` has for it stands
here, so that the list of commands loads none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click

__all__ = ["SHORT_HELP", "load", "names"]

#: Every command and its line of help.
SHORT_HELP: Mapping[str, str] = {
    "backtrace": "Show where the target is, with source lines.",
    "check": "Go through the list before a long run.",
    "clean": "Remove the rings of targets that have ended.",
    "compare": "Compare the ranks: which one is slow, and where.",
    "config": "Show or change the recorder's settings.",
    "dashboard": "Open the dashboard of a host server in a browser.",
    "detach": "Take the recorder out of the target.",
    "diagnose": "Say what is wrong, what it costs, and what to do.",
    "doctor": "Say what would prevent an attach; touches nothing.",
    "eval": "Run Python in the target and print its output.",
    "export": "Write files for other tools: Perfetto, Parquet, DuckDB.",
    "fr-trace": "Name the rank that hung, from dumps of Flight Recorder.",
    "grads": "Show the gradients' norms, zeros and NaN by layer.",
    "hang": "Say whether the job hangs, and which rank it waits for.",
    "inject": "Attach to a running process now.",
    "list": "List targets: PID, job, rank, step, state, age, command.",
    "memory": "Say what takes the memory, and if it grows.",
    "nan": "Name the tensors that are not finite, and the module.",
    "plot": "Draw the answer to an SQL query.",
    "profile": "Profile a few steps, or a few seconds of CPU time.",
    "query": "Query the target with SQL.",
    "ranks": "List the ranks of a job: host, step, step time, state.",
    "repl": "Open a Python prompt in the target.",
    "report": "Write one zip for a bug report.",
    "run": "Start a command with the recorder in it.",
    "serve": "Run the host server for all targets of this host.",
    "status": "Show how the job is doing on one screen.",
    "stop": "End the host server of this host and user.",
    "tables": "List the tables and their columns.",
    "top": "Watch a job on one screen: ranks, steps, phases, findings.",
    "watch": "Repeat an SQL query every few seconds.",
    "watch-var": "Print expressions as the job trains.",
}


def names() -> list[str]:
    """All commands, sorted."""
    return sorted(SHORT_HELP)


def load(name: str) -> click.Command:
    """The command called `name`."""
    command = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").command
    assert isinstance(command, click.Command)
    command.short_help = SHORT_HELP[name]
    return command
