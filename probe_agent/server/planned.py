"""Why the host server that a target was to start for PROBE_LISTEN does not serve.

The server writes what it says into a file in the target's folder and holds a lock on it as long as it lives. Runs in
the host server that is asked instead, for each target that is listed: one small file.
"""

from __future__ import annotations

import fcntl
import os
from time import time

from probe_agent.untrusted_files import opened

__all__ = ["planned_server_problem"]

#: As activate/listen.py names it.
_SAID = "server.txt"
_MAX_BYTES = 4096
#: A port that is taken may be that of a host server that is just starting: the recorder knows by then.
START_S = 30.0


def planned_server_problem(folder: str) -> str:
    """Return what the server said when it could not start; empty where it serves, starts, or none was wanted."""
    try:
        with opened(os.path.join(folder, _SAID)) as descriptor:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return ""
            text = os.read(descriptor, _MAX_BYTES).decode("utf-8", "replace").strip()
            age_s = time() - os.fstat(descriptor).st_mtime
    except OSError:
        return ""  # none was wanted
    if "listening on " in text or (text.startswith("cannot listen on ") and age_s < START_S):
        return ""
    lines = text.splitlines() or ["the host server for PROBE_LISTEN ended before it served"]
    return " ".join(line.removeprefix("probe: ") for line in lines[-2:])
