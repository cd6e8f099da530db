"""A recorder of rows that can be verified: every column follows from the first.

    counted_rows.py BASE CAPACITY ROWS      write ROWS rows, then wait
    counted_rows.py BASE CAPACITY hammer    write as fast as it can

Runs the recorder with its folder in BASE. Prints `ready` when it answers; ends when its standard input does.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import own_recorder

from probe_agent.recorder.ring import folder
from probe_agent.recorder.ring.table import NULL_FLOAT, Column, Table
from probe_agent.recorder.ring.writer import RingWriter

BATCH = 100


class Numbers(Table):
    name = "test.numbers"
    doc = "Columns that follow from seq."
    columns = (
        Column("seq", "int", "", "counts rows from 0"),
        Column("odd", "bool", "", "whether seq is odd"),
        Column("name", "text", "", "name- and seq % 7"),
        Column("half", "float", "", "seq / 2"),
        Column("mixed", "float", "", "NULL, NaN, or seq, by seq % 3"),
        Column("ts", "time", "UTC", "seq microseconds after 1970"),
    )


def rows(first, last, names):
    mixed = (lambda n: NULL_FLOAT, lambda n: float("nan"), float)
    return [(n, n % 2 == 1, names[n % 7], n / 2, mixed[n % 3](n), n) for n in range(first, last)]


def main():
    base, capacity, amount = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    folder.BASES = (base,)
    own = None
    own_recorder.start()
    while own is None:
        users = folder.user_folder(base, os.getuid())
        names = os.listdir(users) if os.path.isdir(users) else []
        own = next((os.path.join(users, name) for name in names if name.startswith(f"{os.getpid()}-")), None)
        time.sleep(0.001)
    while not os.path.exists(os.path.join(own, folder.TARGET)):
        time.sleep(0.001)
    coordinates = {"host": "here", "pid": os.getpid(), "rank": 0, "world_size": 1}
    writer = RingWriter(os.path.join(own, folder.ring_name(Numbers.name)), Numbers, coordinates, capacity=capacity)
    names = [writer.text_number(f"name-{n}") for n in range(7)]
    print("ready", flush=True)
    if amount == "hammer":
        stopping = []
        _thread.start_new_thread(lambda: stopping.append(sys.stdin.read()), ())
        written = 0
        while not stopping:
            writer.write(rows(written, written + BATCH, names))
            written += BATCH
    else:
        for first in range(0, int(amount), BATCH):
            writer.write(rows(first, min(first + BATCH, int(amount)), names))
        print("written", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
