"""Host lists as SLURM, pdsh and ClusterShell write them: node[01-64], rack[1-2]n[1,3,7-9].

A pair of brackets with colons in it is an IPv6 address and no list.
"""

from __future__ import annotations

import itertools
import re

from probe_agent.errors import BadRequest

__all__ = ["MAX_HOSTS", "expanded", "is_list", "split"]

MAX_HOSTS = 10_000
_PAIR = re.compile(r"\[([^\[\]:]*)\]")
_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")
_EXAMPLE = "a list is written like node[01-64]:8080, node[1-3,7]:8080 or rack[1-2]n[01-16]:8080"


def is_list(text: str) -> bool:
    """Whether there is a list in `text`, or something that was meant for one."""
    return _PAIR.search(text) is not None or text.count("[") != text.count("]")


def expanded(text: str) -> list[str]:
    """Every text that `text` stands for, in its order. Raises BadRequest."""
    pieces = _PAIR.split(text)  # text, list, text, list, …, text
    if any("[" in piece or "]" in piece for piece in pieces[2::2]) or pieces[0].count("[") != pieces[0].count("]"):
        raise BadRequest(f"{text}: a bracket has no partner", _EXAMPLE)
    lists = [_ranges(piece, text) for piece in pieces[1::2]]
    num = 1
    for ranges in lists:
        num *= sum(last - first + 1 for first, last, _ in ranges)
    if num > MAX_HOSTS:
        raise BadRequest(f"{text}: these are {num:,} hosts; {MAX_HOSTS:,} are the most", "name a part of them")
    columns = [
        [f"{number:0{width}}" for first, last, width in ranges for number in range(first, last + 1)] for ranges in lists
    ]
    return [
        "".join(itertools.chain(*zip(pieces[::2], (*chosen, ""), strict=True)))
        for chosen in itertools.product(*columns)
    ]


def split(text: str) -> list[str]:
    """The parts of `text` between commas and spaces, those in brackets left alone."""
    return [part for part in re.split(r"[,\s]+(?![^\[]*\])", text) if part]


def _ranges(content: str, text: str) -> list[tuple[int, int, int]]:
    """First, last and least number of digits of each range."""
    if not content.strip():
        raise BadRequest(f"{text}: there is nothing in the brackets", _EXAMPLE)
    found = []
    for part in content.split(","):
        ends = _RANGE.fullmatch(part.strip())
        if ends is None:
            raise BadRequest(f"{text}: {part.strip() or content!r} is no number and no range of numbers", _EXAMPLE)
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if first > last:
            raise BadRequest(f"{text}: the range {part.strip()} is reversed", f"did you mean {ends[2]}-{ends[1]}?")
        found.append((first, last, len(ends[1])))
    return found
