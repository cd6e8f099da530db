"""The last resort: an error nobody expected becomes one line for the user and a report in a file for us."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback

from probe_agent import __version__

__all__ = ["report_bug", "state_folder"]


def state_folder() -> str:
    """Where we keep what should outlive a run (history, bug reports); made when missing."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folder = os.path.join(base, "probe")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def report_bug(bug: BaseException) -> int:
    """Write down what happened, tell the user where, and return the exit code."""
    print(f"probe: this is a bug in probe ({type(bug).__name__}: {bug})", file=sys.stderr)
    try:
        path = os.path.join(state_folder(), time.strftime(f"bug-%Y%m%d-%H%M%S-{os.getpid()}.log", time.gmtime()))
        with open(path, "x", encoding="utf-8") as log:
            log.write(f"probe {__version__}, Python {sys.version}, {platform.platform()}\n{sys.argv!r}\n\n")
            log.writelines(traceback.format_exception(bug))
    except OSError as refusal:
        print(f"try: report it; its details could not be written down ({refusal})", file=sys.stderr)
    else:
        print(f"try: report it with what is in {path}", file=sys.stderr)
    return 1
