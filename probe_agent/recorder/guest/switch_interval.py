"""Gets our threads their turn at the GIL while they have work to do.

A thread that waits for the GIL asks for it only after a switch interval (5 ms) in which nobody let go of it. A job
that lets go of it more often than that, for microseconds each time (a loop that looks for a file, say), takes it back
before anybody has woken up: a waiting thread got none of 4,000 turns in 4 s. So while we start, and while we answer,
the interval is short; then it is again what the job had. Whoever attaches or asks sets it (inject/nudge.py) when we
cannot, because we do not get the GIL to do so.
"""

from __future__ import annotations

import sys

__all__ = ["SHORT_S", "hurry", "rest", "usual_s"]

#: Odd enough to be known as ours. Short enough that such a job's pulses are longer.
SHORT_S = 11e-6

#: What the job has, in seconds. Whoever attached may have shortened it before we were here, and then says so.
usual_s = sys.getswitchinterval()


def hurry() -> None:
    """We have work to do."""
    _see()
    sys.setswitchinterval(SHORT_S)


def rest() -> None:
    """We have none. What the job has set meanwhile stays."""
    if _see():
        sys.setswitchinterval(usual_s)


def _see() -> bool:
    """Whether the interval is short; otherwise it is what the job has set."""
    global usual_s
    if not _is_short():
        usual_s = sys.getswitchinterval()
        return False
    return True


def _is_short() -> bool:
    return round(sys.getswitchinterval() * 1e6) == round(SHORT_S * 1e6)
