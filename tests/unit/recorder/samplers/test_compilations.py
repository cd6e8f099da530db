"""torch.compile: Dynamo's work, read from its own records."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch._dynamo")

from probe_agent.recorder.config import Settings  # noqa: E402
from probe_agent.recorder.guest.failures import Errors, Failures  # noqa: E402
from probe_agent.recorder.ring.buffer import RowBuffer  # noqa: E402
from probe_agent.recorder.ring.table import NULL_FLOAT  # noqa: E402
from probe_agent.recorder.samplers import compilations  # noqa: E402
from probe_agent.recorder.source import Recorder  # noqa: E402


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    yield
    torch._dynamo.reset()


def source() -> compilations.Source:
    return compilations.Source(Recorder(Settings({}), Failures(RowBuffer(Errors)).record))


def rows(of: compilations.Source) -> list[dict[str, object]]:
    texts = {number: text for text, number in of._buffer._numbers.items()}
    names = [column.name for column in compilations.Compilations.columns]
    kinds = [column.kind for column in compilations.Compilations.columns]
    return [
        {
            name: texts[value] if kind == "text" else None if value == NULL_FLOAT else value
            for name, kind, value in zip(names, kinds, row, strict=True)
        }
        for row in of._buffer.rows
    ]


def doubled(tensor):
    return tensor * 2 + 1


def broken(tensor):
    tensor = tensor * 2
    torch._dynamo.graph_break()
    return tensor + 1


def test_a_recompile_says_why():
    began = time.time()
    it = source()
    it.start()
    compiled = torch.compile(doubled, backend="eager", dynamic=False)

    for length in (3, 4):
        compiled(torch.ones(length))
        it.tick()

    first, second = rows(it)
    assert (first["event"], first["function"], first["reason"]) == ("compile", "doubled", None)
    assert (second["event"], second["function"]) == ("recompile", "doubled")
    assert "size mismatch at index 0. expected 3, actual 4" in second["reason"]
    assert first["compile_id"].split("/")[0] == second["compile_id"].split("/")[0]
    assert (first["file"], first["lineno"]) == (__file__, doubled.__code__.co_firstlineno)
    assert first["num_ops"] == 2
    assert first["num_guards"] > 0
    assert 0 < first["duration"] < 60
    assert began * 1e6 < first["ts"] < second["ts"] <= time.time() * 1e6 + 1


def test_a_graph_break_has_its_line_and_its_reason():
    it = source()
    it.start()

    torch.compile(broken, backend="eager")(torch.ones(3))
    it.tick()

    (found,) = [row for row in rows(it) if row["event"] == "graph_break"]
    assert found["lineno"] == broken.__code__.co_firstlineno + 2
    assert (found["function"], found["file"]) == ("broken", __file__)
    assert "graph_break" in found["reason"]
    assert "Hint" not in found["reason"]
    assert next(row["function"] for row in rows(it) if row["event"] == "compile") == "broken"


def test_compilations_before_the_attach_have_their_own_time():
    torch.compile(broken, backend="eager")(torch.ones(3))
    compiled_at = time.time()
    time.sleep(0.05)

    it = source()
    it.start()
    it.tick()

    assert [row["event"] for row in rows(it)] == ["graph_break", "compile", "compile"]
    assert all(row["ts"] <= compiled_at * 1e6 + 1 for row in rows(it))


def test_a_backward_has_the_name_of_its_function():
    it = source()
    it.start()

    torch.compile(doubled, backend="aot_eager")(torch.ones(3, requires_grad=True)).sum().backward()
    it.tick()

    forward = [row for row in rows(it) if row["event"] == "compile"]
    assert [row["function"] for row in forward] == ["doubled"]
    backward = [row for row in rows(it) if row["event"] == "backward"]
    assert [(row["function"], row["compile_id"]) for row in backward] == [("doubled", forward[0]["compile_id"])]


def test_too_many_recompiles_are_a_failure():
    it = source()
    it.start()

    with torch._dynamo.config.patch(recompile_limit=2):
        compiled = torch.compile(doubled, backend="eager", dynamic=False)
        for length in range(3, 7):
            compiled(torch.ones(length))
    it.tick()

    last = rows(it)[-1]
    assert (last["event"], last["function"]) == ("failure", "doubled")
    assert "recompile limit" in last["reason"]


def test_reading_changes_nothing_of_dynamo():
    compiled = torch.compile(broken, backend="eager", dynamic=False)
    it = source()
    it.start()

    for length in (3, 4, 4, 4):
        compiled(torch.ones(length))
        it.tick()
    it.stop()
    compiled(torch.ones(4))

    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] == 4
    assert sum(counters["graph_break"].values()) == 2
    assert len([row for row in rows(it) if row["event"] in ("compile", "recompile")]) == 4


def test_it_goes_on_after_dynamo_has_been_reset():
    it = source()
    it.start()
    torch.compile(broken, backend="eager")(torch.ones(3))
    it.tick()

    torch._dynamo.reset()
    torch._dynamo.utils.clear_compilation_metrics()
    torch.compile(broken, backend="eager")(torch.ones(3))
    it.tick()

    events = [row["event"] for row in rows(it)]
    assert events.count("graph_break") == 2
    assert events.count("compile") == 4
