"""SQL statements that are timed: a sum over all rows, and the three statements that users type."""

from __future__ import annotations

__all__ = ["COUNT", "STATEMENTS"]

COUNT = "SELECT COUNT(*) FROM python.torch_trace"

STATEMENTS = {
    "GROUP BY module, all rows": (
        "SELECT module, stage, COUNT(*) AS count, AVG(duration) AS avg_time FROM python.torch_trace "
        "GROUP BY module, stage ORDER BY avg_time DESC"
    ),
    "where it is": "SELECT func, file, lineno, depth FROM python.backtrace ORDER BY depth LIMIT 10",
    "slowest modules": (
        "SELECT module, stage, COUNT(*) AS count, AVG(duration) AS avg_time, SUM(duration) AS total_time "
        "FROM python.torch_trace WHERE step > (SELECT MAX(step) - 5 FROM python.torch_trace) "
        "GROUP BY module, stage ORDER BY total_time DESC LIMIT 10"
    ),
    "memory by step": (
        "SELECT step, MAX(allocated) AS peak_memory, MAX(allocated) - MIN(allocated) AS memory_range "
        "FROM python.torch_trace WHERE step > (SELECT MAX(step) - 20 FROM python.torch_trace) "
        "GROUP BY step ORDER BY step"
    ),
}
