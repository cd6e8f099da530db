"""Commands on a report: what its maker's command has said is shown; what needs a living job is refused."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from probe_agent.errors import BadRequest

from .endpoint import Endpoint, Report
from .render.terminal import visible
from .report_file import ReportFile, finding_file

__all__ = ["ANSWERED", "stored_output"]

#: Commands that put their questions to a report as they do to a host server.
ANSWERED = frozenset({"backtrace", "export", "plot", "query", "ranks", "tables"})
_FORMATS = {"json", "envelope"}


def stored_output(named: Sequence[Endpoint], command: str, arguments: Collection[str]) -> int | None:
    """Print what `command` has said when the report was made and return its exit code; None if the command asks the
    report itself, or there is none."""
    reports = [endpoint for endpoint in named if isinstance(endpoint, Report)]
    if not reports or command in ANSWERED:
        return None
    report = ReportFile(reports[0].path)
    if len(named) > 1:
        raise BadRequest(f"{command} of a report is about that one, and {len(named)} endpoints are named", "name one")
    if command not in report.findings:
        known = ", ".join(sorted({*ANSWERED, *report.findings}))
        raise BadRequest(
            f"{report.path} is a report, and {command} needs the living job", f"of a report these can be asked: {known}"
        )
    text = report.read(finding_file(command, "json" if _FORMATS & set(arguments) else "txt")).decode("utf-8", "replace")
    sys.stdout.writelines(visible(line) + "\n" for line in text.splitlines())
    return report.findings[command]
