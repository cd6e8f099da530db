"""The locks that a line is run under, by its source."""

from __future__ import annotations

import pytest

from probe_agent.targets.lock_blocks import locks_around

SOURCE = b"""\
def save(self, lock):
    first()
    with self.lock, open("x") as file:
        inside()
        with other: both()
    after()
    guard.acquire()
    try:
        guarded()
    finally:
        guard.release()
    end()
"""


@pytest.mark.parametrize(
    ("lineno", "locks"),
    [
        (2, ()),
        (3, ()),  # it is still taken
        (4, ("self.lock", "open('x')")),
        (5, ("self.lock", "open('x')")),
        (6, ()),
        (9, ("guard",)),
        (11, ()),
        (12, ()),
    ],
)
def test_a_line_is_run_under_the_locks_whose_block_it_is_in(lineno: int, locks: tuple[str, ...]) -> None:
    assert locks_around(SOURCE, lineno) == locks


def test_source_that_cannot_be_parsed_has_none() -> None:
    assert locks_around(b"with x:\n  print 'old'", 2) == ()
