"""Requests forwarded to the target: stacks, eval, settings, detach."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.waiting import stop, until

from probe_agent.errors import BadRequest, NoAnswer
from probe_agent.inject import py_spy
from probe_agent.targets import Target, TargetDirectory, take_stacks
from probe_agent.targets.control import ask

from .conftest import Host

HOLD_GIL = "import ctypes; ctypes.PyDLL(None).usleep(4000000)"


def test_backtrace_shows_each_line_with_its_text(full_host: Host) -> None:
    taken = full_host.http.get("/v1/backtrace").json()

    main = taken["threads"][0]
    assert taken["source"] == "recorder"
    assert main["is_main"]
    assert main["thread"] == "MainThread"
    assert [frame["depth"] for frame in main["frames"]] == list(range(len(main["frames"])))
    assert "sys.stdin.read()" in [frame["source"] for frame in main["frames"]]


def test_all_threads_are_shown_with_ours_marked(full_host: Host) -> None:
    taken = full_host.http.get("/v1/backtrace", params={"all": True}).json()

    assert len(taken["threads"]) >= 2
    assert any(thread["is_probe"] for thread in taken["threads"])


def test_stacks_are_read_from_outside_while_the_gil_is_held(host: Host) -> None:
    target = host.target(64, 1)
    began = time.monotonic()
    with start_eval(host, HOLD_GIL):
        wait_until_silent(host)

        taken = host.http.get("/v1/backtrace").json()
        rows = host.query("SELECT func, lineno FROM python.backtrace ORDER BY depth")

        assert time.monotonic() - began < 4, "the GIL was free again"
    assert taken["source"] == "outside"
    assert f"pid {target.pid}" in taken["notes"][0]
    assert "holds the GIL in " in taken["notes"][0]
    assert taken["threads"][0]["frames"][-1]["func"] == "<module>"
    assert [row[0] for row in rows["rows"]][-2:] == ["main", "<module>"]  # type: ignore[attr-defined]
    assert "outside" in str(rows["notes"])


def test_stacks_come_from_faulthandler_where_they_cannot_be_read_from_outside(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = TargetDirectory((str(host.base),)).find(host.target(64, 1).pid)
    monkeypatch.setattr(py_spy, "_reader", lambda: None)  # as where py-spy has no wheel
    with start_eval(host, HOLD_GIL):
        wait_until_silent(host)

        taken = take_stacks(target, all_threads=False)

    assert taken.source == "faulthandler"
    assert [frame.func for frame in taken.threads[0].frames][-2:] == ["main", "<module>"]
    assert "py-spy is not installed" in taken.notes[1]


def test_a_stopped_target_is_reported_and_read_from_outside(host: Host) -> None:
    target = host.target(64, 1)
    target.send_signal(19)
    wait_for_state(target.pid, "T")

    taken = host.http.get("/v1/backtrace").json()

    target.send_signal(18)
    assert taken["source"] == "outside"
    assert taken["threads"][0]["frames"][-1]["func"] == "<module>"
    assert "is stopped" in taken["notes"][0]
    assert f"kill -CONT {target.pid}" in taken["notes"][0]


def _rows_of(target: Target) -> object:
    try:
        answer = ask(target, "environment", timeout_s=10)
    except BadRequest:  # until it has seen that those in its queue have hung up
        return None
    return answer["rows"]


def test_a_stopped_target_with_a_full_queue_is_still_said_to_be_stopped(host: Host) -> None:
    process = host.target(64, 1)
    target = TargetDirectory((str(host.base),)).find(process.pid)
    stop(process.pid)
    try:
        with ExitStack() as asking:
            queue_is_full = 0
            while not queue_is_full:
                waiting = asking.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                queue_is_full = waiting.connect_ex(target.control_path)

        with pytest.raises(NoAnswer, match="did not answer environment: it is stopped") as refused:
            ask(target, "environment", timeout_s=0.5)
    finally:
        process.send_signal(18)

    assert refused.value.hint == f"continue it: kill -CONT {process.pid}"
    assert until(lambda: _rows_of(target), timeout_s=10)


def test_eval_streams_what_is_printed_and_ends_with_the_result(full_host: Host) -> None:
    code = "print('one'); print('two')\n6 * 7"

    with full_host.http.stream("POST", "/v1/eval", json={"code": code}) as answer:
        lines = [json.loads(line) for line in answer.iter_lines()]

    assert answer.headers["content-type"] == "application/x-ndjson"
    assert "".join(line.get("text", "") for line in lines) == "one\ntwo\n"
    assert lines[-1]["done"]
    assert (lines[-1]["state"], lines[-1]["result"]) == ("finished", "42")


def test_hanging_up_cancels_the_eval_in_the_target(host: Host) -> None:
    host.target(64, 1)
    note = host.base / "note"
    code = f"import pathlib, time\nnote = pathlib.Path({str(note)!r})\nnote.write_text('running')\n"
    connection = start_eval(
        host, code + "try:\n    while True: time.sleep(0.01)\nfinally: note.write_text('cancelled')"
    )
    until(lambda: note.exists() and note.read_text() == "running")

    connection.close()

    until(lambda: note.read_text() == "cancelled")


def test_eval_of_a_target_that_is_gone_is_an_error(host: Host) -> None:
    target = host.target(64, 1)
    target.kill()
    target.wait()

    answer = host.http.post("/v1/eval", json={"code": "1"})

    assert answer.status_code == 504
    assert answer.json()["error"]["kind"] == "NoAnswer"


def test_names_are_completed(full_host: Host) -> None:
    answer = full_host.http.post("/v1/complete", json={"text": "Numb"}).json()

    assert answer["matches"] == ["Numbers"]


def test_settings_are_shown_and_changed(host: Host) -> None:
    host.target(64, 1)

    changed = host.http.patch("/v1/config", json={"changes": {"trace.every": "3"}})
    refused = host.http.patch("/v1/config", json={"changes": {"trace.evry": "3"}})
    shown = host.http.get("/v1/config").json()

    assert changed.status_code == 200
    assert {s["name"]: s["value"] for s in shown["settings"]}["trace.every"] == "3"
    assert refused.status_code == 400
    by_name = {s["name"]: s for s in shown["settings"]}
    assert (by_name["trace.every"]["in_force"], by_name["flush.interval"]["why"]) == ("3", "")
    assert by_name["trace.every"]["why"].startswith("set by hand, so it is kept")
    taken_back = host.http.patch("/v1/config", json={"changes": {"trace.every": "default"}}).json()
    assert {s["name"]: (s["value"], s["why"]) for s in taken_back["settings"]}["trace.every"] == ("20", "")
    assert refused.json()["error"]["hint"].startswith("use one of: trace.every")


def test_targets_tell_who_they_are(full_host: Host) -> None:
    listed = full_host.http.get("/v1/targets", params={"candidates": True}).json()
    health = full_host.http.get("/v1/health").json()

    (target,) = listed["targets"]
    assert target["alive"]
    assert target["state"] == "sleeping"
    assert any("counted_rows.py" in part for part in target["command"])
    assert health["targets"] == 1
    assert target["pid"] not in [candidate["pid"] for candidate in listed["candidates"]]


def test_detach_takes_the_target_off_the_list(host: Host) -> None:
    target = host.target(64, 1)

    answer = host.http.post("/v1/detach").json()

    assert answer == {"detached": target.pid, "kept": None}
    assert host.http.get("/v1/targets").json()["targets"] == []
    assert target.poll() is None


def test_several_targets_must_be_distinguished(host: Host) -> None:
    first, second = host.target(64, 1), host.target(64, 1)

    unclear = host.http.get("/v1/backtrace")
    clear = host.http.get("/v1/backtrace", params={"pid": second.pid})
    with subprocess.Popen(["sleep", "60"]) as no_python:
        unknown = host.http.get("/v1/backtrace", params={"pid": no_python.pid})
        no_python.kill()

    assert unclear.status_code == 400
    assert f"pid {first.pid}" in unclear.json()["error"]["hint"]
    assert clear.status_code == 200
    assert unknown.json()["error"]["message"] == f"pid {no_python.pid} has no recorder in it"


def test_a_foreign_name_of_the_server_is_turned_away(full_host: Host) -> None:
    answer = full_host.http.get("/v1/health", headers={"Host": "rebound.example"})

    assert answer.status_code == 421
    assert answer.json()["error"]["kind"] == "BadRequest"


def test_a_request_that_is_too_long_is_turned_away(full_host: Host) -> None:
    answer = full_host.http.post("/v1/eval", json={"code": "#" * (1 << 20)})

    assert answer.status_code == 413


def test_a_misspelled_name_is_reported(full_host: Host) -> None:
    missing = full_host.http.post("/v1/query", json={"sq": "SELECT 1"})
    nowhere = full_host.http.get("/v1/nowhere")

    assert missing.status_code == 400
    assert "body.sql" in missing.json()["error"]["message"]
    assert nowhere.status_code == 404
    assert "error" in nowhere.json()


def start_eval(host: Host, code: str) -> socket.socket:
    """Open a connection on which an eval has been sent and nothing read."""
    body = json.dumps({"code": code}).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(host.socket)
    head = f"POST /v1/eval HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    connection.sendall(head.encode() + b"\r\n\r\n" + body)
    return connection


def wait_until_silent(host: Host) -> None:
    """Wait until the target no longer answers: it holds its GIL."""
    (path,) = host.base.glob("probe-*/*/control.sock")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(0.2)
            connection.connect(str(path))
            connection.sendall(b'{"op": "hello"}\n')
            try:
                connection.recv(1)
            except TimeoutError:
                return
    raise AssertionError("it answered all the time")


def wait_for_state(pid: int, letter: str) -> None:
    stat = Path(f"/proc/{pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == letter)
