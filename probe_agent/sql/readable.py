"""Whether DuckDB reads a statement in a moment. Some it would read for hours, holding this process up all the while.

DuckDB 2.0 tries several ways to read what it finds wrong in the end: eight times `WITH a AS (` takes it 24 s, twelve
hours, and 8,000 brackets or signs a minute. Nothing can interrupt that, and Python's lock is held. So a statement that
may be like that is read in a process of its own first, which can be ended.

Runs in the host server, on the query's thread: 20 µs for the statements that people write, 0.2 s for others.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

from probe_agent.errors import QueryFailed

__all__ = ["check_readable"]

#: A statement of no more than this is read in some 0.2 s, whatever is in it; each WITH may make that take four times as
#: long.
_PLAIN_LENGTH = 20_000
_PLAIN_DEPTH = 50
_BRACKETS = re.compile(r"[(\[{]|[)\]}]")
_WITHS = re.compile(r"\bwith\b", re.IGNORECASE)
_SIGNS = re.compile(r"(?:[-+~!@][\s]*){50}")
#: What reading may take of a processor, and what it may take more for each character: of the longest statements that
#: say something (a million characters of numbers) it takes 1.5 s. And all of it on the wall.
_MOST_CPU_S, _MOST_CPU_S_A_CHARACTER, _MOST_S = 0.5, 4e-6, 15.0
_READ = """
import sys
sys.path[:] = sys.argv[2:]
import resource
from time import process_time
import duckdb
sql = sys.stdin.buffer.read().decode("utf-8", "replace")
began = process_time()
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
limit = int(began + float(sys.argv[1])) + 2
resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
try:
    duckdb.extract_statements(sql)
except duckdb.Error:
    pass
print(process_time() - began)
"""


def check_readable(sql: str) -> None:
    """Raise QueryFailed for a statement that would hold this process up."""
    if _is_plain(sql):
        return
    most_s = _MOST_CPU_S + len(sql) * _MOST_CPU_S_A_CHARACTER
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _READ, str(most_s), *sys.path],
            input=sql.encode("utf-8", "replace"),
            capture_output=True,
            env=plain,
            timeout=_MOST_S,
        )
    except subprocess.TimeoutExpired:
        took_s = _MOST_S
    else:
        took_s = float(done.stdout) if done.returncode == 0 else _MOST_S
    if took_s > most_s:
        raise QueryFailed(
            f"this statement takes DuckDB more than {most_s:.2g} s to read, or cannot be read at all",
            "nest it less: WITH in WITH, brackets, signs; is one of its brackets without its partner?",
        )


def _is_plain(sql: str) -> bool:
    num_withs = len(_WITHS.findall(sql))
    if len(sql) > _PLAIN_LENGTH // 4 ** min(num_withs, 9) or _SIGNS.search(sql):
        return False
    depth = 0
    for bracket in _BRACKETS.findall(sql):
        depth = max(0, depth + (1 if bracket in "([{" else -1))
        if depth > _PLAIN_DEPTH:
            return False
    return True
