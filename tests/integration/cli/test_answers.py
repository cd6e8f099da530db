"""Every command against a real server: its stdout, its stderr and its exit code."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import threading
from pathlib import Path

import pytest
from support.commands import Probe, environment

from .conftest import BIN, small_server

NOBODY = "127.0.0.1:1"  # a port nothing listens on


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:0", "unix"])
def test_every_transport_carries_a_question(address: str, tmp_path: Path, probe: Probe) -> None:
    with small_server(f"unix:{tmp_path}/s" if address == "unix" else address, tmp_path / "events") as endpoint:
        done = probe(endpoint, "query", "rows")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == ["rank", "loss", "module"]


def test_the_rank_behind_a_server_is_passed_on(tcp: str, probe: Probe) -> None:
    done = probe(f"{tcp}/3", "query", "rows", "--format", "json")

    assert [record["rank"] for record in json.loads(done.stdout)] == [3, 3, 3]


def test_proxies_of_the_environment_are_ignored(tcp: str, probe: Probe) -> None:
    done = probe(tcp, "query", "rows", http_proxy=f"http://{NOBODY}", ALL_PROXY=f"http://{NOBODY}")

    assert done.returncode == 0, done.stderr


def test_csv_keeps_nan_null_and_commas(tcp: str, probe: Probe) -> None:
    done = probe(tcp, "query", "rows", "--format", "csv")

    rows = list(csv.reader(io.StringIO(done.stdout)))
    assert rows == [["rank", "loss", "module"], ["", "0.5", "fc, 1"], ["", "NaN", ""], ["", "", ""]]


def test_sql_may_come_from_stdin_or_a_file(tcp: str, probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "question.sql").write_text("rows")

    outputs = {
        probe(tcp, "query", stdin="rows").stdout,
        probe(tcp, "query", "-", stdin="rows").stdout,
        probe(tcp, "query", "-f", str(tmp_path / "question.sql")).stdout,
        probe(tcp, "query", "rows").stdout,
    }

    assert len(outputs) == 1
    assert "fc, 1" in outputs.pop()


def test_parquet_keeps_nan_apart_from_null(tcp: str, probe: Probe, tmp_path: Path) -> None:
    import duckdb

    done = probe(tcp, "query", "rows", "--format", "parquet", "-o", str(tmp_path / "rows.parquet"))

    assert done.returncode == 0, done.stderr
    assert "as arrow" in done.stderr
    rows = duckdb.sql(f"SELECT step, isnan(loss) FROM '{tmp_path}/rows.parquet' ORDER BY step").fetchall()
    assert rows == [(1, True), (2, None)]


def test_a_failed_query_leaves_no_output_file(tcp: str, probe: Probe, tmp_path: Path) -> None:
    done = probe(tcp, "query", "wrong", "-o", str(tmp_path / "rows.csv"))

    assert done.returncode == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("rows")] == []


def test_an_error_in_the_sql_exits_with_1_and_its_hint(tcp: str, probe: Probe) -> None:
    done = probe(tcp, "query", "wrong")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "probe: no table python.step\ntry: did you mean python.steps?\n"


def test_no_server_exits_with_4_and_says_how_to_start_one(probe: Probe) -> None:
    done = probe(NOBODY, "query", "rows")

    assert (done.returncode, done.stdout) == (4, "")
    assert "refused the connection" in done.stderr
    assert f"probe serve --listen {NOBODY}" in done.stderr


def test_a_server_that_is_not_ours_is_no_answer(probe: Probe, tmp_path: Path) -> None:
    import http.server

    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as foreign:
        threading.Thread(target=foreign.serve_forever, daemon=True).start()
        done = probe(f"127.0.0.1:{foreign.server_port}", "tables")
        foreign.shutdown()

    assert done.returncode == 4
    assert "probe serve" in done.stderr


def test_some_silent_targets_exit_with_3_and_are_named(tcp: str, probe: Probe) -> None:
    done = probe("-t", tcp, "-t", NOBODY, "tables")

    assert done.returncode == 3
    assert "python.steps" in done.stdout
    assert f"1 of 2 answered; not: {NOBODY}" in done.stderr


def test_a_target_that_takes_too_long_is_no_answer(tcp: str, probe: Probe) -> None:
    done = probe(tcp, "query", "slow", "--timeout", "0.2")

    assert done.returncode == 4
    assert "did not answer within" in done.stderr


def test_a_backtrace_shows_names_lines_and_source(tcp: str, probe: Probe) -> None:
    done = probe(tcp, "backtrace", "--all")

    lines = done.stdout.splitlines()
    assert lines[0] == "thread MainThread (main, training, tid 201)"
    assert lines[1].split() == ["#0", "forward", "/home/me/train.py:41"]
    assert lines[2].strip() == "return self.fc(x)"
    assert "pin\\x1b[31m" in done.stdout  # a thread's name does not steer the terminal
    assert done.stderr == "taken in 1 ms\n"


def test_a_backtrace_as_json_is_the_servers_own(tcp: str, probe: Probe) -> None:
    answer = json.loads(probe(tcp, "backtrace", "--json").stdout)

    assert answer["threads"][0]["frames"][0]["lineno"] == 41


def test_eval_keeps_data_and_remarks_apart(tcp: str, probe: Probe) -> None:
    done = probe(tcp, "eval", "hello")

    assert (done.returncode, done.stdout) == (0, "to stdout\n'hello'\n")
    assert done.stderr == "model was taken from main()\nto stderr\n"


def test_an_exception_in_eval_exits_with_1_and_its_traceback(tcp: str, probe: Probe) -> None:
    done = probe(tcp, "eval", "raise")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("ValueError: no\n")


def test_the_repl_reads_whole_statements_from_a_pipe(tcp: str, probe: Probe) -> None:
    done = probe(tcp, "repl", stdin="x = 1\nfor i in x:\n    y\nprint(3)\n")

    values = [line for line in done.stdout.splitlines() if line.startswith("'")]
    assert values == ["'x = 1'", repr("for i in x:\n    y"), "'print(3)'"]


def test_a_setting_is_changed_and_shown(tcp: str, probe: Probe, events: Path) -> None:
    done = probe(tcp, "config", "trace.every=1")

    assert done.returncode == 0, done.stderr
    assert json.dumps({"trace.every": "1"}) in events.read_text()
    assert done.stdout.splitlines()[2].split()[:2] == ["trace.every", "1"]


def test_a_misspelt_setting_has_near_names(tcp: str, probe: Probe) -> None:
    done = probe(tcp, "config", "trace.evry")

    assert done.returncode == 2
    assert "use trace.every" in done.stderr


def test_columns_of_a_table_come_with_their_units(tcp: str, probe: Probe) -> None:
    done = probe(tcp, "tables", "python.steps", "--format", "json")

    assert json.loads(done.stdout) == [
        {"table": "python.steps", "column": "duration", "type": "DOUBLE", "unit": "s", "meaning": "how long it took"}
    ]


def test_list_shows_targets_then_training_processes_then_the_rest(tcp: str, probe: Probe) -> None:
    done = probe(tcp, "list", "--format", "jsonl")

    assert [json.loads(line)["pid"] for line in done.stdout.splitlines()] == [201, 202, 302, 301]


def test_a_reader_that_has_seen_enough_ends_us_silently(tcp: str) -> None:
    line = f"{BIN}/probe {tcp} query many --format csv | head -1; exit ${{PIPESTATUS[0]}}"

    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30, env=environment())

    assert (done.returncode, done.stdout, done.stderr) == (0, "number,text\n", "")


def test_a_bug_of_ours_is_one_line_and_a_file(tcp: str, probe: Probe, tmp_path: Path) -> None:
    code = "import probe_cli.cluster.fanout as a\nfrom probe_cli.main import main\na.open_clients = None\nmain()\n"
    (tmp_path / "broken.py").write_text(code)

    done = subprocess.run(
        [BIN / "python", tmp_path / "broken.py", tcp, "tables"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(XDG_STATE_HOME=str(tmp_path)),
    )

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (log,) = (tmp_path / "probe").glob("bug-*.log")
    assert str(log) in done.stderr
    assert "Traceback" in log.read_text()


def test_several_targets_have_a_heading_each_or_a_column(tcp: str, probe: Probe) -> None:
    table = probe("-t", f"{tcp}/0", "-t", f"{tcp}/1", "tables")
    lines = probe("-t", f"{tcp}/0", "-t", f"{tcp}/1", "tables", "--format", "jsonl")

    assert f"== {tcp}/1 ==" in table.stdout
    assert [json.loads(line)["endpoint"] for line in lines.stdout.splitlines()] == [f"{tcp}/0", f"{tcp}/1"]
