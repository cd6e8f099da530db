"""Short switch interval that gives the recorder's threads the GIL while they have work to do.

A waiting thread requests the GIL only after a switch interval (5 ms) in which it was not released. A job that releases
it more often, for microseconds each time (a loop that polls for a file), takes it back before a waiting thread wakes
up: one got none of 4,000 turns in 4 s. So the interval is short while the recorder starts and answers, and then again
what the job had. The attaching or asking process sets it (inject/nudge.py) if the recorder does not get the GIL to do
so. Runs on the recorder's threads; one call of the interpreter each.
"""

from __future__ import annotations

import sys

__all__ = ["SHORT_S", "hurry", "rest", "usual_s"]

#: Odd enough to be recognised as the recorder's; shorter than the pulses of such a job.
SHORT_S = 11e-6

#: The job's own interval, in seconds. The attaching process may have shortened it before, and then passes the value.
usual_s = sys.getswitchinterval()


def hurry() -> None:
    """Shorten the interval: there is work to do."""
    _see()
    sys.setswitchinterval(SHORT_S)


def rest() -> None:
    """Restore the job's interval, unless the job has set another one meanwhile."""
    if _see():
        sys.setswitchinterval(usual_s)


def _see() -> bool:
    """Return whether the interval is the short one; otherwise remember it as the job's."""
    global usual_s
    if not _is_short():
        usual_s = sys.getswitchinterval()
        return False
    return True


def _is_short() -> bool:
    return round(sys.getswitchinterval() * 1e6) == round(SHORT_S * 1e6)
