"""Rings that stay mapped from one query to the next.

Runs in query workers, and in the host server for the list of tables. Mapping a ring anew costs a page fault for every
few pages of it, 5 to 10 ms for 80 MB; a ring whose file is gone is unmapped at the next request, which frees the
memory of a detached target.
"""

from __future__ import annotations

import os
import threading

from probe_agent.targets import Ring

__all__ = ["OpenRings"]


class OpenRings:
    """Rings by path. Any thread may ask."""

    def __init__(self) -> None:
        self._rings: dict[str, Ring] = {}
        self._lock = threading.Lock()

    def get(self, path: str) -> Ring:
        """Return the ring at `path`. Raises RingError, or OSError if there is none."""
        with self._lock:
            status = os.lstat(path)
            ring = self._rings.get(path)
            if ring is None or ring.file_id != (status.st_dev, status.st_ino):
                self._rings.pop(path, None)
                ring = self._rings[path] = Ring(path)
            return ring

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the address space that they take."""
        return sum(len(ring.map) for ring in self._rings.values())

    def forget_removed(self) -> None:
        """Unmap rings whose file is gone, once no query uses them."""
        with self._lock:
            for path in [path for path in self._rings if not os.path.exists(path)]:
                del self._rings[path]
