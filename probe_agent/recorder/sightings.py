"""What our own thread has seen of a job whose steps are not found yet, for whoever asks why a table is empty."""

from __future__ import annotations

from time import monotonic

__all__ = ["Sightings"]


class Sightings:
    """Written by the sources, on our own thread."""

    def __init__(self) -> None:
        self.since = monotonic()
        #: How often each module was seen running as the outermost one: "Net on thread serve_0".
        self.modules: dict[str, int] = {}
        #: The classes of the optimizers that the job's frames lead to.
        self.optimizers: tuple[str, ...] = ()
