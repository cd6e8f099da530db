"""An uncaught exception in words, for the rules that name one: what it says, and where the job's own code met it.

From rows of `python.exceptions`. Torch adds to every error of CUDA how to search for it, and to one of memory who else
uses the device; and the line that raised is most often one of torch's, which tells nobody what to change.
"""

from __future__ import annotations

import re

from probe_cli.cluster.hang.text import is_library
from probe_cli.diagnose.rule import Row

__all__ = ["is_late", "place", "said"]

MAX_MESSAGE = 300
#: What torch appends, whatever the error.
_APPENDED = re.compile(
    r"\s*(Search for `cuda|CUDA kernel errors might be|For debugging consider passing CUDA_LAUNCH_BLOCKING|"
    r"Compile with `TORCH_USE_CUDA_DSA`|See documentation for Memory Management).*",
    re.DOTALL,
)
_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<lineno>\d+), in (?P<func>.+)')


def said(row: Row) -> str:
    """Return class and message, at most 300 characters."""
    text = f"{row['type']}: {_APPENDED.sub('', (row['message'] or '').strip())}"
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


def place(row: Row) -> tuple[str, str, int] | None:
    """Return function, file and line of the innermost frame in the job's own code, or else of what raised."""
    frames = [(one["func"], one["file"], int(one["lineno"])) for one in _FRAME.finditer(row.get("traceback") or "")]
    own = [frame for frame in frames if not is_library(frame[1])]
    if own:
        return own[-1]
    return None if row["lineno"] is None else (row["func"], row["file"], row["lineno"])


def is_late(row: Row) -> bool:
    """Return whether it is an error of a kernel, which CUDA reports when something later waits for it."""
    return "CUDA error" in (row["message"] or "")
