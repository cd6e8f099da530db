"""Code that waits for the end of a step, to run on the training thread between two steps.

The optimizer hook looks at `pending` after every step: the truth of a list, some 20 ns. Nothing is drawn from the
job's random numbers and no exception of the code gets through to the job.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep
from typing import Protocol

__all__ = ["Job", "StepQueue"]


class Job(Protocol):
    """What waits; `run` raises only what the job's own signal handlers raised."""

    def run(self) -> None:
        """Run it on the calling thread."""


class StepQueue:
    """Filled by threads of ours, emptied by the training thread."""

    def __init__(self, last_step: Callable[[], str] = lambda: "not seen since the recorder started") -> None:
        """`last_step` says which step was last, and when, to whoever waits in vain."""
        self.pending: list[Job] = []
        self.last_step = last_step
        #: Nobody runs anything any more.
        self.closed = False

    def submit(self, job: Job) -> None:
        """Run `job` when the next step ends."""
        self.pending.append(job)

    def withdraw(self, job: Job) -> bool:
        """Take `job` back. False when the training thread has it already."""
        try:
            self.pending.remove(job)
        except ValueError:
            return False
        return True

    def run_pending(self) -> None:
        """On the training thread: run what waits now; what is submitted meanwhile waits for the next step."""
        for _ in range(len(self.pending)):
            try:
                job = self.pending.pop(0)
            except IndexError:
                return  # withdrawn in this very moment
            job.run()

    def close(self, timeout_s: float) -> None:
        """We are leaving: what has begun may end with the step, for at most so long; those that wait withdraw."""
        deadline = monotonic() + timeout_s
        while self.pending and monotonic() < deadline:
            sleep(0.005)
        self.closed = True
