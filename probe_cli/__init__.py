"""The command line: asks targets and host servers, merges their answers, shows them.

Runs in the operator's own process, never in a target.
"""

import sys

__all__: list[str] = []

# httpx imports rich and pygments for a command line of its own when it finds them: 35 ms for nothing.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
