"""The folder of one target, or a copy of it, as if it were all that is on this host.

Runs in the CLI, for a folder that its user has named.
"""

from __future__ import annotations

import os

from probe_agent.errors import NoAnswer
from probe_agent.procfs import Process

from .directory import Scan, TargetDirectory
from .target import Target

__all__ = ["ArchiveDirectory"]


class ArchiveDirectory(TargetDirectory):
    """What one target has left. Where it still lives, its recorder can be asked as well."""

    def __init__(self, folder: str) -> None:
        super().__init__(())
        self._folder = folder

    def candidates(self) -> list[Process]:
        """None: an archive has no processes."""
        return []

    def seen(self) -> list[Target]:
        try:
            found = list(Scan(()).target(self._folder, os.stat(self._folder).st_uid))
        except OSError as error:
            raise NoAnswer(
                f"{self._folder} cannot be read: {error.strerror}", "is it still there, and yours?"
            ) from None
        if not found:
            raise NoAnswer(f"{self._folder} holds no target: its target.json cannot be read", "copy all of the folder")
        return found
