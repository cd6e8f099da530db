"""Errors that a job runs into before it trains: the type, the words and the line are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Dying

ERRORS = """
import json
from pathlib import Path
Path("gbk.jsonl").write_bytes("问题".encode("gbk"))
Path("modern.py").write_text("match = = 1")
def a_package(): import package_that_is_not_there
def a_newer_syntax():
    sys.path.insert(0, "."); import modern
def an_encoding(): Path("gbk.jsonl").read_text(encoding="utf-8")
def a_field(): json.loads('{"query": 1}')["positive"]
def a_line(): json.loads('{"query": ')
def a_file(): open("data/raw/qa.md")
for one in (a_package, a_newer_syntax, an_encoding, a_field, a_line, a_file):
    thread = threading.Thread(target=one, name=one.__name__)
    thread.start(); thread.join()
"""
DEVICES = """
import torch
torch.nn.Linear(2, 2)(torch.ones(2, device="meta"))
"""


def test_errors_of_packages_and_data_are_kept_with_their_line(tmp_path: Path) -> None:
    job = Dying(ERRORS, tmp_path, PROBE="1")
    job.wait_for_recorder()
    job.die()

    kept = {row["thread"]: (row["type"], row["message"]) for row in job.exceptions}
    assert {name: type_ for name, (type_, _) in kept.items()} == {
        "a_package": "ModuleNotFoundError",
        "a_newer_syntax": "SyntaxError",
        "an_encoding": "UnicodeDecodeError",
        "a_field": "KeyError",
        "a_line": "json.decoder.JSONDecodeError",
        "a_file": "FileNotFoundError",
    }
    assert "package_that_is_not_there" in kept["a_package"][1]
    assert "data/raw/qa.md" in kept["a_file"][1]
    assert all("job.py" in row["traceback"] for row in job.exceptions)


@pytest.mark.torch
def test_tensors_on_two_devices_are_kept_with_the_line(tmp_path: Path) -> None:
    job = Dying(DEVICES, tmp_path, PROBE="1")
    job.wait_for_recorder()
    job.die()

    (row,) = [row for row in job.exceptions if row["relation"] == "uncaught"]
    assert "device" in row["message"]
    assert "job.py" in row["traceback"]
