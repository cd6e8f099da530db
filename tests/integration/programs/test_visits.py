"""Programs of forty kinds that are attached to and detached from while they run: unchanged afterwards, with the same
results."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from inject.conftest import ask, detach
from support.waiting import until

from probe_agent import inject
from probe_agent.sql.tables.declarations import live_tables
from probe_agent.sql.tables.live_table import RecorderTable

from .conftest import Programs
from .test_programs import OTHERS, TRAINING, all_there

pytestmark = pytest.mark.torch

#: Programs that have more to leave behind than a plain training loop: threads, signals, hooks, loops of other kinds.
ODD = {"gevent_loop", "numpy_loop", "workers"}
#: What the recorder answers for a live table.
OPERATIONS = sorted({table.operation for table in live_tables().values() if issubclass(table, RecorderTable)})
#: Not those whose second thread works while the first one looks around.
ALONE = {name for name, (_, ranks) in TRAINING.items() if ranks == 1} - {"two_threads"}


@pytest.mark.situation("programs of forty kinds, attached to midway", "results, streams and process are as before")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ODD else pytest.mark.long) for name in sorted(ALONE | set(OTHERS))],
)
def test_a_visit_leaves_a_program_as_it_was(programs: Programs, name: str, tmp_path: Path) -> None:
    needs = all_there(TRAINING[name][0] if name in TRAINING else OTHERS[name])
    if name == "gevent_loop":
        pytest.importorskip("gevent")
    (alone,) = programs.twin(name, needs)

    pid, streams = programs.start(name, needs, PROGRAM_VISIT=str(tmp_path))
    until((tmp_path / "come").exists, 60.0)
    attached = inject.attach(pid)
    sample_every_step(attached.folder)
    (tmp_path / "here").touch()
    for operation in OPERATIONS:
        answer = ask(attached.folder, operation)
        assert "rows" in answer or answer["error"]["hint"], (operation, answer)  # no CUDA, no process group
    until((tmp_path / "leave").exists, 60.0)
    ask(attached.folder, "flush")
    tables = programs.tables(pid)
    detach(attached)
    (tmp_path / "gone").touch()
    visited = programs.end(pid, streams)

    assert visited.said == alone.said
    for what, before in visited.truth["before"].items():
        if what == "our objects" and name in {"gan", "notebook"}:
            continue  # an earlier graph is still there, with our hooks in it: in the notebook, of the cell interrupted
        if (name, what) == ("notebook", "sys"):
            continue  # IPython notes there that a cell was interrupted meanwhile
        if (name, what) == ("workers", "descriptors"):
            assert not [one for one in visited.truth["after"][what] if "probe" in one]
            continue  # batches under way, and the pipes of workers that have no more to do, are its own
        assert visited.truth["after"][what] == before
    assert tables["probe.errors"] == []
    if name in TRAINING:
        losses = visited.truth["losses"]
        numbers = [row["step"] for row in tables["python.steps"]]
        assert len(numbers) >= len(losses) // 3 - 2
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        if tables["python.steps"][-1]["counted"]:
            # Of two optimizers the one counts that has stepped first after the attach; the second has a step less.
            # None counts a step that was skipped before the attach.
            fewer = (name == "gan") + sum(visited.truth.get("skipped", ()))
            assert numbers[-1] in {len(losses) - 2, len(losses) - 2 - fewer}


def sample_every_step(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        connection.connect(str(folder / "control.sock"))
        changes = {"trace.every": "1", "trace.deep_every": "1", "trace.budget": "0"}
        connection.sendall(json.dumps({"op": "config", "changes": changes}).encode() + b"\n")
        assert "settings" in json.loads(connection.makefile("rb").read().splitlines()[-1])
