"""What is written down, where, and what happens when it cannot be."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest

from probe_agent import audit
from probe_agent.errors import ProbeError

TARGET = {"host": "here", "pid": 4121, "rank": 3, "world_size": 8, "folder": "/nowhere"}


def action(text: str) -> audit.Action:
    return audit.Action("uid 0 pid 1", "control", "eval", text, TARGET)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "probe" / f"audit-{socket.gethostname()}.jsonl"


def newest() -> list[audit.Entry]:
    return [entry for entry in audit.entries() if entry.action.target == TARGET]


def test_an_action_is_there_from_its_beginning_and_its_result_from_its_end(file: Path) -> None:
    first, second = audit.begin(action("print('ü\n')")), audit.begin(action("2"))
    audit.end(first, "finished")

    assert [(entry.action.text, entry.result) for entry in newest()] == [("print('ü\n')", "finished"), ("2", None)]
    assert second not in file.read_text().splitlines()[-1]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(file.read_text().splitlines()) == 3


def test_lines_that_are_cut_are_left_out(file: Path) -> None:
    audit.begin(action("1"))
    with file.open("a") as out:
        out.write('[]\nnull\n{"id": 1}\n{"id": "x", "ts": 1.0, "tar')

    assert [entry.action.text for entry in newest()] == ["1"]


@pytest.mark.parametrize("damage", ["readable by others", "a link", "a folder"])
def test_a_file_that_is_not_ours_alone_is_not_written_to(
    file: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "_paths", lambda environ: (str(file),))
    file.parent.mkdir()
    if damage == "readable by others":
        file.touch()
        file.chmod(0o644)
    elif damage == "a link":
        file.symlink_to(file.parent / "elsewhere")
    else:
        file.mkdir()

    with pytest.raises(ProbeError, match="nothing was done, because it cannot be written down"):
        audit.begin(action("1"))

    assert not (file.parent / "elsewhere").exists()
    assert damage != "readable by others" or file.read_text() == ""


def test_without_a_folder_of_state_it_lies_beside_the_targets(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = file.parent / "beside.jsonl"
    monkeypatch.setattr(audit, "_paths", lambda environ: ("/proc/none/audit.jsonl", str(beside)))

    audit.begin(action("1"))

    assert beside.read_text().count("\n") == 1
    assert [entry.action.text for entry in newest()] == ["1"]
