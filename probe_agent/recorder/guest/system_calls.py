"""Whether a seccomp filter watches this process: a system call that it does not expect may kill the job.

Runs on the recorder's thread, once for each part that would make a call of its own.
"""

from __future__ import annotations

__all__ = ["are_filtered"]


def are_filtered() -> bool:
    """Return whether the process has a seccomp filter."""
    with open("/proc/self/status") as file:
        return any(line.split() == ["Seccomp:", "2"] for line in file)
