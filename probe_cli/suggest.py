"""The commands that a word may stand for that is no command: misspelt, or another tool's word.

Loaded only after such a word was typed.
"""

from __future__ import annotations

from collections.abc import Mapping

from probe_agent.wire import suggest

from . import commands

__all__ = ["near"]

#: What other tools call something of ours.
_WORDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("state", "progress", "info", "summary", "health"), ("status", "list", "diagnose")),
    **dict.fromkeys(("ps", "ls", "targets", "jobs", "processes", "pids", "who"), ("list",)),
    **dict.fromkeys(("htop", "monitor", "tail", "logs"), ("top", "watch", "list")),
    **dict.fromkeys(("step", "steps", "loss", "losses", "metrics", "stats", "timings"), ("query", "watch")),
    **dict.fromkeys(("bt", "stack", "stacks", "where", "dump", "traceback", "pystack", "threads"), ("backtrace",)),
    **dict.fromkeys(("hung", "stuck", "freeze", "deadlock"), ("hang", "backtrace")),
    **dict.fromkeys(("attach", "start", "load"), ("inject", "run")),
    **dict.fromkeys(("quit", "exit", "unload", "uninject", "eject", "remove"), ("detach",)),
    **dict.fromkeys(("exec", "python", "py", "code", "call", "print"), ("eval", "repl")),
    **dict.fromkeys(("shell", "console", "ipython", "debug"), ("repl", "eval")),
    **dict.fromkeys(("sql", "select", "ask", "db"), ("query",)),
    **dict.fromkeys(("settings", "setting", "set", "get", "option", "options"), ("config",)),
    **dict.fromkeys(("table", "columns", "schema", "describe"), ("tables",)),
    **dict.fromkeys(("flame", "flamegraph", "record", "perf", "cpu", "trace", "profiler"), ("profile",)),
    **dict.fromkeys(("diff", "slow", "straggler", "stragglers"), ("compare",)),
    **dict.fromkeys(("checklist", "preflight", "lint", "validate"), ("check", "doctor")),
    **dict.fromkeys(("rank", "world", "cluster", "nodes"), ("ranks", "list")),
    **dict.fromkeys(("verify", "analyze", "analyse"), ("diagnose", "check", "doctor")),
    **dict.fromkeys(("server", "listen", "daemon", "http"), ("serve",)),
    **dict.fromkeys(("web", "ui", "browser"), ("dashboard", "serve")),
    **dict.fromkeys(("perfetto", "parquet", "chrome", "dump-tables", "save"), ("export", "report")),
    **dict.fromkeys(("draw", "chart", "graph", "png"), ("plot",)),
    **dict.fromkeys(("prune", "rm", "gc", "purge"), ("clean",)),
    **dict.fromkeys(("var", "vars", "variable", "variables"), ("watch-var", "eval")),
    **dict.fromkeys(("mem", "leaks", "oom", "gpu", "nvidia-smi"), ("memory", "query")),
    **dict.fromkeys(("modules", "env"), ("query", "tables")),
}


def near(name: str) -> str:
    """The commands that `name` may stand for, each with its line of help; empty when there are none."""
    found = suggest(name.lower(), commands.names(), _WORDS)
    if not found:
        return ""
    listed = " or ".join(filter(None, [", ".join(found[:-1]), found[-1]]))
    width = max(map(len, found))
    return listed + "\n" + "\n".join(f"  {one.ljust(width)}  {commands.SHORT_HELP[one]}" for one in found)
