"""The command line: asks targets and host servers, merges their answers, shows them.

Runs in the operator's own process, never in a target.
"""

__all__: list[str] = []
