"""The job's own tables: right types, bounded, and nothing that can raise into the job."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
import torch

import probe_agent
from probe_agent.recorder.config import Settings
from probe_agent.recorder.guest.failures import Errors, Failures
from probe_agent.recorder.hooks import user_tables
from probe_agent.recorder.ring.buffer import RowBuffer
from probe_agent.recorder.ring.table import NULL_FLOAT
from probe_agent.recorder.source import Recorder


class Job:
    """A recorder without rings."""

    def __init__(self) -> None:
        self.errors_buffer = RowBuffer(Errors)
        failures = Failures(self.errors_buffer)
        self.recorder = Recorder(Settings({}), failures.record)
        self.source = user_tables.Source(self.recorder)

    def rows(self, table):
        buffer = self.recorder.buffers[table]
        return [decoded(buffer, row) for row in buffer.rows]

    def errors(self):
        return [decoded(self.errors_buffer, row)["message"] for row in self.errors_buffer.rows]


def decoded(buffer, row):
    texts = {number: text for text, number in buffer._numbers.items()}
    named = dict(zip([column.name for column in buffer.table.columns], row, strict=True))
    kinds = {column.name: column.kind for column in buffer.table.columns}
    for name, value in named.items():
        if kinds[name] == "text":
            named[name] = texts[value]
        elif value == NULL_FLOAT:
            named[name] = None
    return named


@pytest.fixture
def job():
    it = Job()
    it.source.start()
    yield it
    it.source.stop()
    assert not hasattr(sys, user_tables.REGISTRY)


def test_without_a_recorder_nothing_happens():
    probe_agent.record("episodes", reward=1.5)
    probe_agent.step()

    assert not hasattr(sys, user_tables.REGISTRY)


def test_the_first_call_makes_the_columns(job):
    job.recorder.step.number = 7
    probe_agent.record("episodes", reward=1.5, length=12, won=True, map="cave")
    probe_agent.record("episodes", map="hill", won=np.bool_(False), length=np.int64(3), reward=2, step=40)

    columns = job.recorder.buffers["job.episodes"].table.columns
    assert [(column.name, column.kind) for column in columns] == [
        ("step", "int"),
        ("ts", "time"),
        ("reward", "float"),
        ("length", "int"),
        ("won", "bool"),
        ("map", "text"),
    ]
    rows = job.rows("job.episodes")
    for row in rows:
        assert row.pop("ts") > 1_600_000_000_000_000
    assert rows == [
        {"step": 7, "reward": 1.5, "length": 12, "won": True, "map": "cave"},
        {"step": 40, "reward": 2.0, "length": 3, "won": False, "map": "hill"},
    ]
    assert job.errors() == []


def test_a_missing_value_is_null_if_the_format_has_null(job):
    probe_agent.record("episodes", reward=1.5, map="cave")
    probe_agent.record("episodes", reward=None)

    assert [(row["reward"], row["map"]) for row in job.rows("job.episodes")] == [(1.5, "cave"), (None, None)]


@pytest.mark.parametrize(
    ("first", "then", "says"),
    [
        ({"n": 1}, {"n": 1.5}, "n=1.5: the column is a whole number"),
        ({"n": 1}, {"n": 1 << 70}, "n=1180591620717411303424: the column is a whole number of 64 bits"),
        ({"n": 1}, {}, "n=None: the column is a whole number"),
        ({"x": 1.0}, {"x": "much"}, "x='much': the column is a number"),
        ({"x": 1.0}, {"x": 10**400}, "int too large"),
        ({"x": 1.0}, {"x": 1.0, "y": 2}, "unknown columns: y; use the columns of the first call"),
        ({"x": 1.0}, {"x": 1.0, "step": "three"}, "step='three': use a whole number"),
        ({"x": 1.0}, {"x": torch.ones(1)}, "x=Tensor: the column is a number"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_of_ours_and_no_row(job, first, then, says):
    probe_agent.record("episodes", **first)
    probe_agent.record("episodes", **then)

    assert len(job.rows("job.episodes")) == 1
    [message] = job.errors()
    assert says in message


@pytest.mark.parametrize(
    ("table", "values", "says"),
    [
        ("two words", {"x": 1}, "invalid table name"),
        ("x" * 64, {"x": 1}, "invalid table name"),
        (["list"], {"x": 1}, "unhashable"),
        (None, {"x": 1}, "invalid table name"),
        ("episodes", {}, "0 columns; use 1 to 64"),
        ("episodes", {f"c{number}": 1 for number in range(65)}, "65 columns; use 1 to 64"),
        ("episodes", {"rank": 1}, "invalid column name 'rank'"),
        ("episodes", {"x y": 1}, "invalid column name 'x y'"),
        ("episodes", {"x": torch.ones(())}, "for a tensor its .item()"),
        ("episodes", {"x": None}, "x=None: use a number"),
    ],
)
def test_a_first_call_that_is_wrong_makes_no_table(job, table, values, says):
    probe_agent.record(table, **values)

    assert not job.recorder.buffers
    [message] = job.errors()
    assert says in message
    assert "test_user_tables.py:" in message


def test_values_whose_own_code_raises_do_not_reach_the_job(job):
    class Vicious:
        def __getattr__(self, name):
            raise RuntimeError("mine")

        def __repr__(self):
            raise RuntimeError("mine")

        __float__ = __int__ = __bool__ = __str__ = __eq__ = __repr__
        __hash__ = None

    probe_agent.record("episodes", x=1.0)
    for _ in range(5):
        probe_agent.record("episodes", x=Vicious())
        probe_agent.record("others", x=Vicious())
        probe_agent.record(Vicious(), x=1)
    probe_agent.record("episodes", x=2.0)

    assert [row["x"] for row in job.rows("job.episodes")] == [1.0, 2.0]
    assert len(job.errors()) == 15


def test_tables_and_their_rings_have_an_end(job):
    for number in range(user_tables.MAX_TABLES + 1):
        probe_agent.record(f"table{number}", **{f"c{n}": 1 for n in range(64)})

    tables = [buffer.table for buffer in job.recorder.buffers.values()]
    assert len(tables) == user_tables.MAX_TABLES
    assert all(table.capacity * table.row_struct().size <= user_tables.RING_BYTES for table in tables)
    [message] = job.errors()
    assert "more than 16 tables" in message


def test_texts_beyond_the_end_are_null_and_long_ones_are_cut(job):
    for number in range(user_tables.MAX_TEXTS + 2):
        probe_agent.record("notes", text=str(number))
    probe_agent.record("notes", text="0")

    texts = [row["text"] for row in job.rows("job.notes")]
    assert texts[: user_tables.MAX_TEXTS] == [str(number) for number in range(user_tables.MAX_TEXTS)]
    assert texts[user_tables.MAX_TEXTS :] == [None, None, "0"]


def test_threads_record_side_by_side(job):
    def record(thread):
        for number in range(500):
            probe_agent.record("many", thread=thread, number=number, text=f"{thread} {number}")

    threads = [threading.Thread(target=record, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    rows = job.rows("job.many")
    assert len(rows) == 2000
    assert all(row["text"] == f"{row['thread']} {row['number']}" for row in rows)


def test_steps_by_hand_end_steps_and_nothing_else_does(recording):
    with recording(trace_every=1) as it:
        source = user_tables.Source(it.recorder)
        source.start()
        net = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(4):
            for _ in range(3):
                net(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            probe_agent.step()
        source.stop()

    steps = it.steps[-3:]
    assert [step["micro_batches"] for step in steps] == [3, 3, 3]
    assert [row["step"] - steps[0]["step"] for row in steps] == [0, 1, 2]
    for step in steps:
        phases = [step[name] or 0.0 for name in ("data_wait", "forward", "backward", "optimizer", "other")]
        assert sum(phases) == pytest.approx(step["duration"], rel=0.02)
