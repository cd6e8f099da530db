"""The snapshot of a stall: bounded, and complete or absent whatever happens to its writer."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest
from support.waiting import until

from probe_agent.recorder.ring.folder import STALL
from probe_agent.recorder.stall.snapshot import Section, write

WRITES = """
import sys
from probe_agent.recorder.stall.snapshot import Section, write
folder, number = sys.argv[1], 0
rows = [[at, "x" * 200] for at in range(4000)]
while True:
    number += 1
    write(folder, {"number": number}, [Section("first", ("at", "text"), rows)] * 1, 1 << 20)
"""


def test_a_snapshot_never_exceeds_its_size_and_counts_what_it_left_out(tmp_path: Path) -> None:
    found = [
        Section("frames", ("depth", "func"), [[depth, "ä" * 50] for depth in range(500)]),
        Section("memory", ("name", "mib"), [["rss", 12.5]]),
        Section("entries", ("entry",), [["x" * 1000]] * 1000),
    ]
    for max_bytes in (4096, 20_000, 100_000, 1 << 20):
        size = write(str(tmp_path), {"step": 3}, found, max_bytes)

        text = (tmp_path / STALL).read_text()
        told = json.loads(text)
        assert size == len(text.encode()) <= max_bytes
        assert told["stall"] == {"step": 3}
        assert told["sections"]["memory"]["rows"] == [["rss", 12.5]]
        for section in found:
            kept = told["sections"][section.name]
            assert len(kept["rows"]) + kept["left_out"] == len(section.rows)
    assert told["sections"]["frames"]["left_out"] == 0
    assert told["sections"]["entries"]["left_out"] > 0


def test_a_failed_write_leaves_the_snapshot_before_it(tmp_path: Path) -> None:
    write(str(tmp_path), {"step": 1}, [], 4096)
    (tmp_path / (STALL + ".new")).mkdir()  # in the way, as a full disk would be

    with pytest.raises(OSError, match="directory"):
        write(str(tmp_path), {"step": 2}, [], 4096)

    assert json.loads((tmp_path / STALL).read_text())["stall"] == {"step": 1}


@pytest.mark.situation("SIGKILL while a stall's snapshot is written", "the snapshot before it, or the whole new one")
def test_sigkill_leaves_no_torn_snapshot(tmp_path: Path) -> None:
    chance = random.Random(4)
    numbers = []
    for _ in range(6):
        with subprocess.Popen([sys.executable, "-c", WRITES, str(tmp_path)]) as process:
            before = (tmp_path / STALL).stat().st_mtime_ns if numbers else 0
            until(
                lambda before=before: (tmp_path / STALL).exists() and (tmp_path / STALL).stat().st_mtime_ns > before,
                process=process,
            )
            sleep(chance.random() * 0.02)  # anywhere in a write
            process.send_signal(signal.SIGKILL)
            process.wait(10)
        told = json.loads((tmp_path / STALL).read_text())
        section = told["sections"]["first"]
        assert len(section["rows"]) + section["left_out"] == 4000
        numbers.append(told["stall"]["number"])

    assert min(numbers) > 0
