"""Exchange of addresses between ranks through the job's store (job/peers.py), which also gives the job its name.

The recorder's thread checks every 2 s, about 50 µs, for a process group and for another host server; on every tick
until the job has a name. The exchange runs on a short-lived thread of the recorder. One rank per host repeats it, at
growing intervals, until all ranks have published their addresses.
"""

from __future__ import annotations

import os
from time import monotonic

from ..guest import own_threads
from ..job.peers import Job
from ..job.rank import name_by_store, name_without_store, rank_and_size, the_job
from ..job.tcp_store import StoreFailed
from ..ring.folder import TARGET
from ..source import Source as BaseSource

__all__ = ["Source"]

LOOK_S = 2.0
#: After a failure, and while ranks are missing, the next exchange comes after 2 s, 4 s, …, 60 s.
FIRST_WAIT_S = 2.0
LONGEST_WAIT_S = 60.0
#: A host server may have moved.
AGAIN_S = 300.0


class Source(BaseSource):
    name = "peers"
    _look_at = 0.0
    _talk_at = 0.0
    _wait_s = FIRST_WAIT_S
    _failed = False
    _talking = False

    def start(self) -> None:
        self._peers = self.recorder.peers
        self._is_first_of_host = os.environ.get("LOCAL_RANK", "0") == "0"

    def tick(self) -> None:
        now = monotonic()
        if now < self._look_at or self._talking or not os.path.exists(os.path.join(self.recorder.folder, TARGET)):
            return
        is_alone = rank_and_size()[1] < 2
        self._look_at = now + (LOOK_S if is_alone or self.recorder.job else 0.0)
        if is_alone:
            return
        job = the_job()
        if not isinstance(job, Job):
            self.recorder.job = self.recorder.job or name_without_store()
            return
        if now >= self._talk_at or (self._peers.is_news(job) and not self._failed):
            self._talking = True
            try:
                own_threads.start(lambda: self._talk(job))
            except RuntimeError:
                self._talking = False
                raise

    def stop(self) -> None:
        self._peers.stop()

    def _talk(self, job: Job) -> None:
        try:
            self._peers.exchange(job)
            self._failed = False
            self.recorder.job = name_by_store(self._peers.oldest_line)
        except StoreFailed:
            self._failed = True  # operations/peers.py reports the reason on request
            self.recorder.job = self.recorder.job or name_without_store()
        except Exception as error:  # the border: this thread has no caller
            self._failed = True
            self.recorder.fail(self.name, error)
        finally:
            self._talk_at = monotonic() + self._next_wait_s(job)
            self._talking = False

    def _next_wait_s(self, job: Job) -> float:
        if not self._failed and not self._is_first_of_host:
            return float("inf")  # until the addresses change
        if not self._failed and self._peers.num_known(job) == job.world_size:
            return AGAIN_S
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
        return self._wait_s / 2
