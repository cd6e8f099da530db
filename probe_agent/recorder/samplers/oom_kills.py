"""How often the kernel's OOM killer has struck in the cgroup of the process: `oom.json`, for after its death.

A process that the OOM killer takes writes nothing. A counter that is higher after its death than in this file tells.

Runs on the recorder's thread: one small file read every 2 s (15 µs), and written when the counter has changed.
"""

from __future__ import annotations

import json
import os
from time import monotonic

from ..ring.folder import OOM
from ..source import Source as BaseSource

__all__ = ["Source"]

LOOK_S = 2.0


class Source(BaseSource):
    name = "oom_kills"
    _counter: str | None = None
    _kills: int | None = None
    _look_at = 0.0

    def start(self) -> None:
        self._counter = next((path for path in _counters() if _kills_in(path) is not None), None)
        self.tick()

    def tick(self) -> None:
        now = monotonic()
        if self._counter is None or now < self._look_at:
            return
        self._look_at = now + LOOK_S
        kills = _kills_in(self._counter)
        if kills is not None and kills != self._kills:
            self._kills = kills
            path = os.path.join(self.recorder.folder, OOM)
            with open(path + ".new", "w") as file:
                file.write(json.dumps({"file": self._counter, "kills": kills}))
            os.chmod(path + ".new", 0o600)
            os.rename(path + ".new", path)


def _counters() -> list[str]:
    """Return the files that may have the counter, of cgroup v2 and v1."""
    found = []
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if not controllers:
                found += [f"/sys/fs/cgroup{path}/memory.events", f"/sys/fs/cgroup/unified{path}/memory.events"]
            elif "memory" in controllers.split(","):
                # Of a container, the path may be the one outside.
                found += [f"/sys/fs/cgroup/memory{path}/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control"]
    return found


def _kills_in(path: str) -> int | None:
    try:
        with open(path) as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), None)
    except OSError:
        return None
