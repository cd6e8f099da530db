"""Check of the host server that this target has started for PROBE_LISTEN: its failure becomes a row of `probe.errors`.

Runs on the recorder's thread every flush.interval until the server serves or has failed: it reads one small file.
"""

from __future__ import annotations

import fcntl
import os

from ..source import Source as BaseSource

__all__ = ["Source"]

#: Output file of the server, which holds a lock on it for as long as it lives.
SAID = "server.txt"


class Source(BaseSource):
    name = "host_server"
    _path: str | None = None

    def start(self) -> None:
        path = os.path.join(self.recorder.folder, SAID)
        self._path = path if os.path.exists(path) else None

    def tick(self) -> None:
        if self._path is None:
            return
        with open(self._path, errors="replace") as file:
            lives = False
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                lives = True
            said = file.read()
        if "listening on " in said:
            self._path = None
        elif not lives:
            self._path = None
            raise OSError(said.strip() or "the host server for PROBE_LISTEN ended before it served")
