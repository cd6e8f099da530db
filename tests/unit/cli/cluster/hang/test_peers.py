"""Whom a send or receive is with, from the arguments of torch's function in a stack."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from probe_agent.errors import NoAnswer
from probe_agent.wire import Backtrace, Frame, ThreadStack
from probe_cli.cluster.hang.peers import Peer, ask_peer

OWN = Frame("pull", "/job/train.py", 94, 1, "python", "dist.recv(x, 0)")
FILE = "/x/site-packages/torch/distributed/distributed_c10d.py"


class Rank:
    """A client whose recorder tells these local variables of the innermost frame, or does not answer."""

    def __init__(self, told: dict[str, str] | None) -> None:
        self.told = told

    async def send(self, kind: type, method: str, path: str, body: object) -> Backtrace:
        if self.told is None:
            raise NoAnswer("it is silent", "wait")
        return stacks("recv", self.told)


def stacks(func: str, told: dict[str, str] | None = None) -> Backtrace:
    frames = (Frame(func, FILE, 2700, 0, "python", None, told), OWN)
    return Backtrace((ThreadStack("MainThread", 1, 1, True, True, False, frames),), "recorder", ())


@pytest.mark.parametrize(
    ("told", "peer"),
    [
        ({"src": "3", "group_src": "1"}, Peer("recv", 3, 1)),
        ({"src": "None", "group_src": "1"}, Peer("recv", None, 1)),
        ({"src": "None", "group_src": "None"}, None),  # from anybody
        (None, None),
    ],
)
def test_the_rank_that_the_function_was_given_is_told(told: dict[str, str] | None, peer: Peer | None) -> None:
    rank: Any = Rank(told)

    assert asyncio.run(ask_peer(rank, stacks("recv"))) == peer


def test_other_calls_and_stacks_that_could_not_be_read_ask_nothing() -> None:
    nobody: Any = None
    other = replace(stacks("all_reduce"), source="outside")

    assert asyncio.run(ask_peer(nobody, other)) is None
    assert asyncio.run(ask_peer(nobody, None)) is None
