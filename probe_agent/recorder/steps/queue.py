"""Queue of work for the training thread between two steps.

The training thread tests `pending` after every step: the truth of a list, about 20 ns. The work draws no random numbers
of the job, and none of its exceptions reaches the job.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep
from typing import Protocol

__all__ = ["Job", "StepQueue"]


class Job(Protocol):
    """An entry; `run` raises only what the job's own signal handlers raised."""

    def run(self) -> None:
        """Run it on the calling thread."""


class StepQueue:
    """A queue filled by threads of the recorder and emptied by the training thread."""

    def __init__(self, last_step: Callable[[], str] = lambda: "not seen since the recorder started") -> None:
        """`last_step` describes the last step, for the message of a timeout."""
        self.pending: list[Job] = []
        self.last_step = last_step
        #: No entry runs any more.
        self.closed = False

    def submit(self, job: Job) -> None:
        """Run `job` when the next step ends."""
        self.pending.append(job)

    def withdraw(self, job: Job) -> bool:
        """Withdraw `job`. Return False if the training thread has taken it already."""
        try:
            self.pending.remove(job)
        except ValueError:
            return False
        return True

    def run_pending(self) -> None:
        """Run the present entries on the training thread; later ones wait for the next step."""
        for _ in range(len(self.pending)):
            try:
                job = self.pending.pop(0)
            except IndexError:
                return  # withdrawn at this moment
            job.run()

    def close(self, timeout_s: float) -> None:
        """Close the queue: entries that have begun get `timeout_s` to end with the step; waiting clients withdraw."""
        deadline = monotonic() + timeout_s
        while self.pending and monotonic() < deadline:
            sleep(0.005)
        self.closed = True
