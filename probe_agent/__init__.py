"""Probe: live answers from a running training job.

    import probe_agent
    probe_agent.start()

starts the recorder in this very process; `PROBE=1` and `probe PID inject` do so from outside. A job may call
`record`, `span` and `step` whether or not there is a recorder: without one they do nothing. They never raise, but for a
span that decorates what it cannot: that raises at once, with or without a recorder.
"""

import sys

from .named_span import span
from .recorder import __version__

__all__ = ["__version__", "record", "span", "start", "step"]


def start() -> None:
    """Start the recorder in this process and return at once. Does nothing where it runs already.

    With PROBE_LISTEN set, a host server listens there. Raises OSError where there is no shared memory to record into,
    and ValueError for an address that cannot be listened on.
    """
    from .activate.start import start as start_recorder  # only a start needs it: importing us is free

    start_recorder()


def record(table: str, /, **values: object) -> None:
    """Add a row to the table `job.<table>`; its columns are those of the first call: numbers, booleans, text.

    The row gets the step being taken; `step=` says another one. None is NULL in a column of floats or text.
    """
    calls = getattr(sys, "_probe_calls", None)
    if calls is not None:
        calls.record(table, values)


def step() -> None:
    """End a step of a loop in which no optimizer or module does; from the first call on nothing else ends one."""
    calls = getattr(sys, "_probe_calls", None)
    if calls is not None:
        calls.step()
