"""The total size of a target's rings, which is the job's memory."""

from __future__ import annotations

from probe_agent.recorder.config import Settings
from probe_agent.recorder.ring.layout import SCHEMA_AT
from probe_agent.recorder.runtime import _CAPACITY_SETTINGS
from probe_agent.sql.tables.declarations import recorded_tables

MOST_BYTES = 64 << 20
STRINGS_BYTES = 1 << 18


def test_all_rings_together_take_64_mib_at_most():
    settings = Settings({})

    sizes = {
        name: SCHEMA_AT
        + 4096
        + STRINGS_BYTES
        + int(settings.get(_CAPACITY_SETTINGS.get(name, ""), table.capacity)) * table.row_struct().size
        for name, table in recorded_tables().items()
    }

    assert len(sizes) > 5
    assert sum(sizes.values()) <= MOST_BYTES, sizes
