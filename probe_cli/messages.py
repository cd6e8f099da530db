"""What goes to stderr: remarks, errors with their hint, and the report of a bug. Nothing else prints an error."""

from __future__ import annotations

import os
import sys
import time
import traceback

import click

from probe_agent import __version__
from probe_agent.errors import ProbeError

__all__ = ["error_text", "print_error", "print_usage_error", "remark", "report_bug", "state_folder"]


def remark(text: str) -> None:
    """Print something that is not data."""
    print(text, file=sys.stderr, flush=True)


def error_text(message: str, hint: str) -> str:
    """What failed and why, and on the next line what to try."""
    return f"probe: {message}" + (f"\ntry: {hint}" if hint else "")


def print_error(error: ProbeError, of: str = "") -> None:
    """Print `error`; `of` is put in front of a message that does not say itself whom it is about."""
    message = error.message if not of or of in error.message else f"{of}: {error.message}"
    remark(error_text(message, error.hint))


def print_usage_error(error: click.ClickException) -> None:
    """Print what click found wrong with the command line, in the same form."""
    message = error.format_message().rstrip(".")
    hint = "probe --help"
    if isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"{error.ctx.command_path} --help"
    if isinstance(error, click.NoSuchOption):
        message = f"no such option: {error.option_name}"
        hint = " or ".join([*(error.possibilities or ()), hint])
    remark(error_text(message[:1].lower() + message[1:], hint))


def state_folder() -> str:
    """Where files that outlive a run are kept (history, bug reports); made when missing."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folder = os.path.join(base, "probe")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def report_bug(bug: BaseException) -> int:
    """Write down what happened, tell the user where, and return the exit code."""
    message = f"this is a bug in probe ({type(bug).__name__}: {bug})"
    try:
        path = os.path.join(state_folder(), time.strftime(f"bug-%Y%m%d-%H%M%S-{os.getpid()}.log", time.gmtime()))
        with open(path, "x", encoding="utf-8") as log:
            log.write(f"probe {__version__}, Python {sys.version}, {' '.join(os.uname())}\n{sys.argv!r}\n\n")
            log.writelines(traceback.format_exception(bug))
    except OSError as refusal:
        remark(error_text(message, f"report it; the details could not be written down ({refusal})"))
    else:
        remark(error_text(message, f"report it with the contents of {path}"))
    return 1
