"""%probe and %%probe, after `%load_ext probe_cli`: a command on a line, or a cell of SQL."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from probe_agent.errors import BadRequest
from probe_cli.main import run

from .answer import Answer
from .job import connect

__all__ = ["load_ipython_extension"]

_USAGE = "%%probe [--all] [-o NAME] [ENDPOINT …], with the SQL below it"


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadRequest(message, _USAGE)


def load_ipython_extension(shell: Any) -> None:  # an InteractiveShell of IPython
    """Register the magics; IPython calls this."""

    def probe(line: str, cell: str | None = None) -> Answer | None:
        if cell is None:
            run(shlex.split(line))
            return None
        arguments = _Arguments(prog="%%probe", add_help=False)
        arguments.add_argument("--all", action="store_true")
        arguments.add_argument("-o", "--output")
        arguments.add_argument("endpoints", nargs="*")
        asked = arguments.parse_args(shlex.split(line))
        answer = connect(*asked.endpoints, all_ranks=asked.all).sql(cell)
        if asked.output:
            shell.user_ns[asked.output] = answer
        return answer

    probe.__doc__ = f"Run a probe command: %probe ENDPOINT backtrace. Or SQL: {_USAGE}."
    shell.register_magic_function(probe, "line_cell", "probe")
