"""The answer to an SQL statement, as it is printed or written to a file."""

from __future__ import annotations

from probe_agent.wire import QueryResult
from probe_cli.cluster.fanout import Answers
from probe_cli.messages import remark

from .output import stdout_to
from .sheet import Sheet
from .show import is_envelope, show, show_envelope

__all__ = ["show_result"]

#: The exit code when there are no rows because nothing is recorded, and not because none matches.
NO_DATA = 1


def show_result(answers: Answers[QueryResult], format_: str, output: str | None = None) -> int:
    """Print the rows, or write them to the file `output`; returns the exit code. Several endpoints have one result
    together."""
    if not answers.answered:
        return answers.exit_code
    _, result = answers.answered[0]
    sheet = Sheet(
        tuple(column.name for column in result.columns), tuple(column.type for column in result.columns), result.rows
    )
    with stdout_to(output):
        if is_envelope(format_, answers):
            show_envelope(sheet, answers, result.notes, truncated=result.truncated)
        else:
            show(sheet, format_)
    for note in result.notes:
        remark(note)
    return answers.exit_code or (NO_DATA if result.missing and not result.rows else 0)
