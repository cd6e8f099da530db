"""Exports of a job of four ranks on two hosts, of an ended target and of a report, read back by other readers."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from support.recorded_job import LATE_S, NUM_RANKS, NUM_STEPS, STEP_S, RecordedJob

from probe_agent.wire import TargetInfo

from .conftest import Ask

Event = dict[str, Any]
#: Rounding of a time in the file, in µs.
ROUNDING = 0.002


def events(path: Path) -> list[Event]:
    found: list[Event] = json.loads(path.read_text())["traceEvents"]
    return found


def slices(found: list[Event], kind: str) -> list[Event]:
    return [event for event in found if event["ph"] == "X" and event["cat"].split(",")[0] == kind]


def total_s(found: list[Event]) -> float:
    return sum(event["dur"] for event in found) / 1e6


def check_nesting(found: list[Event]) -> None:
    """On each track every slice lies beside or inside the others, in the order of time."""
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in found:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for track in tracks.values():
        around: list[Event] = []
        starts = [event["ts"] for event in track if event["cat"] not in ("phase", "wait")]
        assert starts == sorted(starts)
        for event in sorted(track, key=lambda event: (event["ts"], -event["dur"])):
            while around and around[-1]["ts"] + around[-1]["dur"] <= event["ts"] + ROUNDING:
                around.pop()
            if around:
                assert event["ts"] + event["dur"] <= around[-1]["ts"] + around[-1]["dur"] + ROUNDING
            around.append(event)


def test_a_trace_has_the_steps_phases_modules_and_collectives_of_all_ranks(
    job: RecordedJob, ask: Ask, tmp_path: Path
) -> None:
    path = tmp_path / "job.json"

    done = ask(*job.named, "export", "--perfetto", str(path), "--steps", "30")
    asked = ask(
        *job.named, "query", "--format", "json",
        f"SELECT sum(duration) AS steps, sum(backward) AS backward FROM python.steps WHERE step >= {NUM_STEPS - 30}",
    )  # fmt: skip

    found = events(path)
    (row,) = json.loads(asked.out)["rows"]
    assert done.code == 0, done.err
    assert f"{NUM_RANKS} ranks" in done.err
    assert all(event["ts"] >= 0 for event in found if "ts" in event)
    check_nesting(found)
    assert len(slices(found, "step")) == NUM_RANKS * 30
    assert total_s(slices(found, "step")) == pytest.approx(row["steps"], rel=1e-6)
    assert total_s([event for event in found if event["name"] == "backward"]) == pytest.approx(
        row["backward"], rel=1e-6
    )
    assert total_s(slices(found, "phase")) == pytest.approx(row["steps"], rel=1e-6)
    assert len(slices(found, "module")) == NUM_RANKS * 3 * 3
    assert len(slices(found, "collective")) == len(slices(found, "wait")) == NUM_RANKS * 30
    names = {event["pid"]: event["args"]["name"] for event in found if event["name"] == "process_name"}
    assert [names[pid].split(" (")[0] for pid in sorted(names)] == [f"rank {rank}" for rank in range(NUM_RANKS)]


def test_arrows_lead_through_a_collective_to_the_rank_that_came_last(
    job: RecordedJob, ask: Ask, tmp_path: Path
) -> None:
    path = tmp_path / "job.json"

    ask(*job.named, "export", "--perfetto", str(path), "--steps", "10")

    found = events(path)
    flows: dict[int, list[Event]] = defaultdict(list)
    for event in found:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    starts = {(event["pid"], event["tid"], event["ts"]) for event in slices(found, "collective")}
    last = [event for event in slices(found, "collective") if event["pid"] == NUM_RANKS]
    assert len(flows) == 10
    for flow in flows.values():
        assert [event["ph"] for event in flow] == ["s", *"t" * (NUM_RANKS - 2), "f"]
        assert flow[-1]["pid"] == NUM_RANKS
        assert all((event["pid"], event["tid"], event["ts"]) in starts for event in flow)
    # The clocks of the two hosts are one and are measured apart: to within their uncertainty.
    assert all(event["args"]["after_the_first_ms"] == pytest.approx(LATE_S * 1e3, abs=15) for event in last)


def test_parquet_has_a_file_for_each_rank_and_table(job: RecordedJob, ask: Ask, tmp_path: Path) -> None:
    folder = tmp_path / "tables"

    done = ask(*job.named, "export", "--parquet", str(folder), "--table", "python.steps")

    rows = polars.read_parquet(folder / "python.steps" / "*.parquet")
    assert done.code == 0, done.err
    assert [own.name for own in folder.iterdir()] == ["python.steps"]
    assert sorted(file.name.split("-")[1] for file in folder.rglob("*.parquet")) == list("0123")
    assert len(rows) == NUM_RANKS * NUM_STEPS
    assert rows["duration"].sum() == pytest.approx(NUM_RANKS * NUM_STEPS * STEP_S)
    assert rows.filter(polars.col("step") == 7)["loss"].is_nan().all()


def test_a_duckdb_file_has_the_rows_of_all_ranks_and_what_columns_mean(
    job: RecordedJob, ask: Ask, tmp_path: Path
) -> None:
    path = tmp_path / "job.duckdb"

    done = ask(*job.named, "export", "--duckdb", str(path), "--table", "python.steps", "--table", "python.groups")

    with duckdb.connect(str(path), read_only=True) as database:
        rows = database.execute("SELECT rank, count(*), max(step) FROM python.steps GROUP BY rank ORDER BY rank")
        assert rows.fetchall() == [(rank, NUM_STEPS, NUM_STEPS - 1) for rank in range(NUM_RANKS)]
        said = database.execute("SELECT comment FROM duckdb_columns() WHERE column_name = 'data_wait'").fetchall()
        assert "waiting for the DataLoader" in said[0][0]
    assert done.code == 0, done.err
    assert list(tmp_path.iterdir()) == [path]


def as_report(tables: Path, path: Path) -> None:
    """Write a report of these Parquet files, as `probe … report` lays it out."""
    known: dict[str, list[dict[str, str]]] = {}
    targets: dict[str, dict[str, Any]] = {}
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(tables.rglob("*.parquet")):
            _, rank, pid = file.stem.split("-")
            table, folder = file.parent.name, f"ranks/{rank}-{pid}"
            archive.write(file, f"{folder}/tables/{table}.parquet")
            described = duckdb.sql(f"DESCRIBE SELECT * FROM '{file}'").fetchall()
            known[table] = [{"name": name, "type": kind, "unit": "", "meaning": ""} for name, kind, *_ in described]
            info = TargetInfo(
                int(pid), int(rank), 0, NUM_RANKS, f"host{int(rank) // 2}", 0, False, "gone", None, None, None, (), "",
                None, "", "", 0.0, "",
            )  # fmt: skip
            targets[folder] = {"folder": folder, "info": asdict(info)}
        listed = [
            {"name": name, "doc": "", "kind": "recorded", "columns": columns, "rows": None, "lost": None,
             "covers": None, "first": None, "last": None}
            for name, columns in known.items()
        ]  # fmt: skip
        head = {"format": "probe-report", "version": 1, "targets": list(targets.values()), "tables": listed}
        archive.writestr("report.json", json.dumps(head))


@pytest.mark.long
def test_a_report_is_exported_as_its_job_would_be(job: RecordedJob, ask: Ask, tmp_path: Path) -> None:
    report, trace, database = tmp_path / "r.zip", tmp_path / "report.json", tmp_path / "r.duckdb"
    tables = ("python.steps", "python.collectives", "python.groups")
    ask(
        *job.named, "export", "--parquet", str(tmp_path / "p"), *(word for name in tables for word in ("--table", name))
    )
    as_report(tmp_path / "p", report)

    done = ask(str(report), "export", "--perfetto", str(trace), "--duckdb", str(database))

    assert done.code == 0, done.err
    assert len(slices(events(trace), "step")) == NUM_RANKS * NUM_STEPS
    assert "the clocks of host0, host1 cannot be asked" in done.err
    with duckdb.connect(str(database), read_only=True) as opened:
        assert opened.execute("SELECT count(*) FROM python.collectives").fetchall() == [(NUM_RANKS * NUM_STEPS,)]


def test_an_ended_target_is_exported(job: RecordedJob, ask: Ask, tmp_path: Path) -> None:
    trace, folder = tmp_path / "ended.json.gz", tmp_path / "p"

    done = ask(str(job.ended), "export", "--perfetto", str(trace), "--parquet", str(folder), "--table", "python.steps")

    assert done.code == 0, done.err
    assert len(slices(json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"], "step")) == NUM_STEPS
    assert len(list((folder / "python.steps").iterdir())) == 1


def test_bad_input_is_refused_before_anybody_is_asked(job: RecordedJob, ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "own.duckdb").write_text("of somebody else")

    refused = {
        "nothing to write": ask(*job.named, "export"),
        "its folder does not exist": ask(*job.named, "export", "--perfetto", str(tmp_path / "no" / "t.json")),
        "not an empty folder": ask(*job.named, "export", "--parquet", str(tmp_path / "full")),
        "own.duckdb exists already": ask(*job.named, "export", "--duckdb", str(tmp_path / "own.duckdb")),
        "--table is for": ask(*job.named, "export", "--perfetto", str(tmp_path / "t"), "--table", "python.steps"),
        "no target has a table python.stepz": ask(
            *job.named, "export", "--duckdb", str(tmp_path / "d"), "--table", "python.stepz"
        ),
    }

    assert {why: done.code for why, done in refused.items()} == dict.fromkeys(refused, 2)
    assert [why for why, done in refused.items() if why not in done.err or "try: " not in done.err] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "own.duckdb"]
    assert (tmp_path / "own.duckdb").read_text() == "of somebody else"
