"""A plain Python loop that records when it did not run: the finest view of the effect of an attach on a thread.

{"seconds": 2}    spin for two seconds; its pieces are the gaps of 0.1 ms and more
"""

from __future__ import annotations

import os

from commands import Piece, now, serve_blocks, told

GAP_NS = 100_000
LOOK_NS = 1_000_000


def spin(order: dict[str, float]) -> list[Piece]:
    """Loop for `seconds`."""
    gaps = []
    last = now()
    until = last + order.get("seconds", float("inf")) * 1e9
    looked, look = last, bool(order.get("until_told"))
    while last < until:
        moment = now()
        if look and moment - looked > LOOK_NS:
            if told():
                break
            looked = moment
        if moment - last > GAP_NS:
            gaps.append((last, moment))
        last = moment
    return gaps


if __name__ == "__main__":
    serve_blocks({"program": "spin", "pid": os.getpid()}, spin)
