"""Watch over the host server that this target wants for PROBE_LISTEN: if none serves, the reason is in `probe.errors`.

Runs on the recorder's thread every flush.interval until that is known: one small file is read.
"""

from __future__ import annotations

import fcntl
import os
import re
import time

from ..job.address import announced
from ..source import Source as BaseSource

__all__ = ["Source"]

#: Output file of the server, which holds a lock on it for as long as it lives, or of this target if the port was taken.
SAID = "server.txt"
#: The first target's host server has announced its address by then.
START_S = 30.0
_TAKEN = re.compile(r"cannot listen on \S*:(\d+): ")


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
            age_s = time.time() - os.fstat(file.fileno()).st_mtime
        taken = _TAKEN.match(said)
        if taken and any(
            address.rstrip("/").endswith(":" + taken[1]) for address in announced(os.path.dirname(self.recorder.folder))
        ):
            os.unlink(self._path)  # by the host server of another target
            self._path = None
        elif "listening on " in said:
            self._path = None
        elif not lives and not (taken and age_s < START_S):
            self._path = None
            raise OSError(said.strip() or "the host server for PROBE_LISTEN ended before it served")
