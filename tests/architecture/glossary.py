"""Glossary of words that our prose and messages avoid, each with the one to use.

`test_prose.py` beside it holds the pages to it, and the test of the messages holds those.
"""

from __future__ import annotations

import re

__all__ = ["AVOIDED", "violations"]

#: Pattern -> what to write instead.
AVOIDED = {
    r"\b(a|an|any|each|every|one|another|two|both) training\b"
    r"(?! (batch|job|loop|loss|process|program|run|script|step|thread))": (
        "training is not countable: the job, the training process, the target"
    ),
    r"\btrainings\b": "jobs",
    r"\bthousand million\b": "billion",
    r"\b[Ss]ome [0-9.,]+": "about",
    r"\bgive or take\b": "within ±",
    r"\bin vain\b": "say what did not happen, and within how long",
    r"\bnobody'?s\b": "say which rank, host or target",
    r"\bnobody is\b": "no rank, no target, no host",
    r"\bwho is at the other end\b": "peer",
    r"\bshall\b": "use the imperative",
    r"\ba row is\b": "description",
    r"(?<!here )\bis no (longer )?(length|number|name|rank|pid|endpoint|table)\b": "invalid duration, unknown rank",
}


def violations(text: str) -> list[str]:
    """Return each avoided word of a text with its line number and the remedy."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        for pattern, instead in AVOIDED.items():
            found += [f"line {number}: {match[0]!r}: {instead}" for match in re.finditer(pattern, line)]
    return found
