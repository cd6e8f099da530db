"""Every action on a target is a row of `probe.audit`, however it was requested."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import plain, probe

from .served import Served, serving, training


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of this module's audit file."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, state: Path) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, "--listen", "TCP", XDG_STATE_HOME=str(state)) as server:
        yield server


def rows(server: Served, pid: int, where: str = "") -> list[dict[str, object]]:
    """Return the rows for the target `pid`."""
    sql = f"SELECT * FROM probe.audit {where} ORDER BY ts"
    answer = server.ask("POST", f"/v1/query?pid={pid}", "read", json={"sql": sql}).json()
    names = [column["name"] for column in answer["columns"]]
    return [dict(zip(names, row, strict=True)) for row in answer["rows"]]


def test_every_way_to_change_a_target_leaves_a_row(server: Served, state: Path) -> None:
    with training() as pid:
        at = f"?pid={pid}"
        long = "x = 1\n" + "# " + "ü" * 100_000

        server.ask("POST", f"/v1/eval{at}", "control", json={"code": long})
        server.ask("POST", f"/v1/eval{at}", "control", json={"code": "1 / 0"})
        server.ask("PATCH", f"/v1/config{at}", "control", json={"changes": {"trace.every": "7"}})
        server.ask("PATCH", f"/v1/config{at}", "control", json={"changes": {"trace.evry": "7"}})
        server.ask("POST", f"/v1/profile/cpu{at}", "control", json={"seconds": 1, "format": "folded"})
        server.ask("POST", f"/v1/eval{at}", "read", json={"code": "2"})  # refused: it is not done, and no row
        server.ask("POST", f"/v1/query{at}", "read", json={"sql": "SELECT 1"})
        # A host server of its own for these two: one that lingers writes where it was started to.
        own = {"XDG_STATE_HOME": str(state), "PROBE_RUNTIME_DIR": str(state), "PROBE_LINGER": "0"}
        probe("-t", f"unix:{server.unix}//pid={pid}", "eval", "3", **own)
        probe(str(pid), "eval", "4", **own)
        server.ask("POST", f"/v1/detach{at}", "control")
        found = rows(server, pid, f"WHERE pid = {pid}")

    assert [(row["action"], str(row["text"])[:60], str(row["result"])[:34]) for row in found] == [
        ("eval", long[:60], "finished"),
        ("eval", "1 / 0", "failed"),
        ("config", "trace.every=7", "done"),
        ("config", "trace.evry=7", "failed: unknown setting 'trace.evr"),
        ("profile", found[4]["text"][:60], "done"),  # type: ignore[index]
        ("eval", "3", "finished"),
        ("eval", "4", "finished"),
        ("detach", "", "done"),
    ]
    assert found[0]["text"] == long
    assert {row["role"] for row in found} == {"control"}
    assert {(row["pid"], row["host"]) for row in found} == {(pid, os.uname().nodename)}
    assert str(found[0]["peer"]).startswith("127.0.0.1:")
    assert str(found[5]["peer"]).startswith(f"uid {os.getuid()} pid ")
    assert str(found[6]["peer"]).startswith(f"uid {os.getuid()} pid ")
    (file,) = (state / "probe").glob("audit-*.jsonl")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_rows_of_targets_that_are_no_more_are_shown_with_those_of_the_others(server: Served) -> None:
    with training() as gone:
        server.ask("POST", f"/v1/eval?pid={gone}", "control", json={"code": "'of one that ends'"})
        server.ask("POST", f"/v1/detach?pid={gone}", "control")
    with training() as asked, training() as other:
        for pid in (asked, other):
            server.ask("POST", f"/v1/eval?pid={pid}", "control", json={"code": f"'of {pid}'"})
        found = {row["pid"] for row in rows(server, asked)}

    assert {gone, asked} <= found
    assert other not in found


@pytest.mark.parametrize("way", ["/v1/eval", "/v1/eval/hold"])
def test_an_eval_whose_client_leaves_is_reported(server: Served, way: str) -> None:
    with training() as pid:
        code = "import time\nprint(1, flush=True)\nwhile True: time.sleep(0.01)"
        asked = {"code": code, "ticket": f"of {pid}"}
        with server.stream("POST", f"{way}?pid={pid}", "control", json=asked) as lines:
            first = json.loads(next(lines))
            under_way = rows(server, pid, f"WHERE pid = {pid}")
        seen = ""
        while not seen or seen == "None":
            seen = str(rows(server, pid, f"WHERE pid = {pid}")[0]["result"])

    assert first.get("text") == "1\n" or first["held"]
    assert [(row["action"], row["text"]) for row in under_way] == [("eval", code)]
    assert [row["result"] for row in under_way] == [None]
    assert seen == "the client has hung up"


def test_an_attach_leaves_a_row_and_a_second_one_that_does_nothing_leaves_none(tmp_path: Path) -> None:
    code = "import time\nwhile True: time.sleep(0.05)"
    # The command writes the row and its host server reads it: both in this folder.
    own = {"XDG_STATE_HOME": str(tmp_path), "PROBE_RUNTIME_DIR": str(tmp_path), "PROBE_LINGER": "0"}
    with subprocess.Popen([sys.executable, "-c", code], env=plain()) as job:
        try:
            done = [probe(str(job.pid), "inject", **own) for _ in range(2)]
            sql = f"SELECT peer, role, action, result FROM probe.audit WHERE pid = {job.pid}"
            asked = probe(str(job.pid), "query", sql, "--format", "json", **own)
        finally:
            job.kill()

    assert [each.returncode for each in done] == [0, 0], done
    (row,) = json.loads(asked.stdout)
    assert row["peer"].startswith(f"uid {os.geteuid()} pid ")
    assert (row["role"], row["action"]) == ("control", "inject")
    assert row["result"].startswith("done: ")
