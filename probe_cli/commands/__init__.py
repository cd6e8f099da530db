"""One file a verb: `commands/NAME.py` defines `command`, and adding a command is adding that file (`_` stands for `-`).

A command's file imports only click and light modules of ours at the top, so that `probe --help` can read
them all; whatever is heavy it imports when it runs.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

import click

__all__ = ["load", "names", "near"]

#: What other tools call something of ours.
_WORDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("status", "state", "progress", "info", "summary", "health"), ("list", "backtrace", "query")),
    **dict.fromkeys(("ps", "ls", "targets", "jobs", "processes", "pids", "who"), ("list",)),
    **dict.fromkeys(("top", "monitor", "tail", "logs"), ("watch", "list")),
    **dict.fromkeys(("step", "steps", "loss", "losses", "metrics", "stats", "timings"), ("query", "watch")),
    **dict.fromkeys(("bt", "stack", "stacks", "where", "dump", "traceback", "pystack", "threads"), ("backtrace",)),
    **dict.fromkeys(("hang", "hung", "stuck"), ("backtrace", "compare")),
    **dict.fromkeys(("attach", "start", "load"), ("inject", "run")),
    **dict.fromkeys(("quit", "exit", "unload", "uninject", "eject", "remove"), ("detach",)),
    **dict.fromkeys(("exec", "python", "py", "code", "call", "print"), ("eval", "repl")),
    **dict.fromkeys(("shell", "console", "ipython", "debug"), ("repl", "eval")),
    **dict.fromkeys(("sql", "select", "ask", "db"), ("query",)),
    **dict.fromkeys(("settings", "setting", "set", "get", "option", "options"), ("config",)),
    **dict.fromkeys(("table", "columns", "schema", "describe"), ("tables",)),
    **dict.fromkeys(("flame", "flamegraph", "record", "perf", "cpu", "trace", "profiler"), ("profile",)),
    **dict.fromkeys(("diff", "slow", "straggler", "stragglers"), ("compare",)),
    **dict.fromkeys(("rank", "world", "cluster", "nodes"), ("ranks", "list")),
    **dict.fromkeys(("check", "diagnose", "verify"), ("doctor", "compare")),
    **dict.fromkeys(("server", "listen", "daemon", "web", "dashboard", "ui", "http"), ("serve",)),
    **dict.fromkeys(("prune", "rm", "gc", "purge"), ("clean",)),
    **dict.fromkeys(("var", "vars", "variable", "variables"), ("watch-var", "eval")),
    **dict.fromkeys(("memory", "mem", "gpu", "nvidia-smi", "modules", "env"), ("query", "tables")),
}


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
    """The commands that `name` may stand for, each with its line of help; empty when there are none."""
    from probe_agent.wire import suggest

    found = suggest(name.lower(), names(), _WORDS)
    if not found:
        return ""
    listed = " or ".join(filter(None, [", ".join(found[:-1]), found[-1]]))
    width = max(map(len, found))
    return listed + "?\n" + "\n".join(f"  {one.ljust(width)}  {load(one).get_short_help_str(200)}" for one in found)
