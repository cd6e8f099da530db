"""The audit log: its contents, its place, and the behaviour if it cannot be written."""

from __future__ import annotations

import fcntl
import json
import socket
import stat
import subprocess
import sys
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


def test_a_line_that_had_no_room_to_its_end_does_not_spoil_the_next_one(file: Path) -> None:
    audit.begin(action("1"))
    with file.open("a") as out:
        out.write('{"id": "x", "ts": 1.0, "tar')

    audit.end(audit.begin(action("2")), "done")

    assert [(entry.action.text, entry.result) for entry in newest()] == [("1", None), ("2", "done")]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are rotated after a few lines."""
    monkeypatch.setattr(audit, "MAX_BYTES", 1000)
    monkeypatch.setattr(audit, "NUM_KEPT", 3)


def test_a_file_that_is_long_enough_is_set_aside_and_read_on(file: Path, short: None) -> None:
    for number in range(8):
        audit.end(audit.begin(action(str(number))), f"result {number}")

    files = sorted(file.parent.iterdir())
    assert [found.name.removeprefix(file.name) for found in files] == ["", ".1", ".2"]
    assert all(found.stat().st_size <= 1000 and stat.S_IMODE(found.stat().st_mode) == 0o600 for found in files)
    assert [(entry.action.text, entry.result) for entry in newest()] == [(str(n), f"result {n}") for n in range(8)]
    assert audit.notes() == []


def test_only_the_newest_files_are_kept_with_a_remark(file: Path, short: None) -> None:
    for number in range(60):
        audit.begin(action(str(number)))

    kept = sorted(int(found.suffix[1:]) for found in file.parent.glob("*.jsonl.*"))
    (said,) = audit.notes()
    assert len(kept) == 3
    assert kept[0] > 1
    assert sum(found.stat().st_size for found in file.parent.iterdir()) <= 4 * 1000
    texts = [int(entry.action.text) for entry in newest()]
    assert texts == list(range(texts[0], 60))
    assert f"the oldest actions are kept no longer: those of {kept[0] - 1} files" in said
    assert f"{file}.{kept[0]}" in said


def test_a_remark_says_that_not_all_is_read(file: Path, short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "READ_BYTES", 1500)
    for number in range(8):
        audit.begin(action(str(number)))

    texts = [int(entry.action.text) for entry in newest()]
    assert texts == list(range(texts[0], 8))
    assert 1500 // 300 <= len(texts) < 8
    assert any("older ones are in" in said for said in audit.notes())


def test_a_file_that_cannot_be_rotated_grows(file: Path, short: None) -> None:
    audit.begin(action("0"))
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as somebody does who is stopped amid it
        for number in range(1, 9):
            audit.begin(action(str(number)))
        while_held = len(list(file.parent.iterdir()))
    audit.begin(action("9"))

    assert while_held == 1
    assert len(list(file.parent.iterdir())) == 2
    assert [entry.action.text for entry in newest()] == list("0123456789")


def test_a_line_whose_file_goes_while_it_is_written_is_in_the_next_one(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, times = audit._check, iter(range(3))

    def checked_and_gone(descriptor: int, path: str) -> None:
        check(descriptor, path)
        if next(times, 2) < 2:  # opened, and not yet written to
            Path(path).unlink()

    with monkeypatch.context() as patched:
        patched.setattr(audit, "_check", checked_and_gone)
        audit.begin(action("1"))

    assert [entry.action.text for entry in newest()] == ["1"]


@pytest.mark.parametrize("suffix", ["", ".1"])
@pytest.mark.parametrize("damage", ["readable by others", "a link", "a folder"])
def test_a_file_that_is_not_only_ours_is_ignored_with_a_remark(file: Path, damage: str, suffix: str) -> None:
    audit.begin(action("forged"))
    odd = file.parent / (file.name + suffix)
    file.rename(file.parent / "elsewhere")
    if damage == "a link":
        odd.symlink_to(file.parent / "elsewhere")
    elif damage == "a folder":
        odd.mkdir()
    else:
        (file.parent / "elsewhere").rename(odd)
        odd.chmod(0o644)

    assert newest() == []
    assert [said.startswith(f"{odd} is not read: ") for said in audit.notes()] == [True]


WRITER = """
import sys
from probe_agent import audit
audit.MAX_BYTES, audit.NUM_KEPT = 4000, 10_000
sys.stdin.read(1)
for number in range(int(sys.argv[2])):
    text = f"{sys.argv[1]}-{number}"
    about = {"host": "here", "pid": 4121, "rank": 3, "world_size": 8, "folder": "/nowhere"}
    audit.end(audit.begin(audit.Action("uid 0 pid 1", "control", "eval", text, about)), "of " + text)
"""


def test_many_who_write_at_once_lose_nothing_when_files_are_set_aside(file: Path) -> None:
    num_writers, num_actions = 4, 250
    commands = [[sys.executable, "-c", WRITER, str(writer), str(num_actions)] for writer in range(num_writers)]
    writers = [subprocess.Popen(command, stdin=subprocess.PIPE) for command in commands]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"g")
        writer.stdin.close()

    assert [writer.wait(60) for writer in writers] == [0] * num_writers
    everything = [f"{writer}-{number}" for writer in range(num_writers) for number in range(num_actions)]
    assert sorted((e.action.text, e.result) for e in newest()) == sorted((text, f"of {text}") for text in everything)
    files = list(file.parent.iterdir())
    assert len(files) > 50
    # A line that was looked at while it was half there may be followed by an empty one.
    assert all(json.loads(line) for found in files for line in found.read_text().splitlines() if line)
    assert len({found.suffix for found in files} - {".jsonl"}) == max(int(f.suffix[1:]) for f in files if f != file)
