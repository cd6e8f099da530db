"""`tables` and `config` on terminals of several widths: every name is shown in full."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
from support.commands import Probe, environment

from .test_by_pid import process
from .test_terminal import plain, terminal


@pytest.fixture(scope="module")
def pid() -> Iterator[str]:
    with process() as number:
        subprocess.run(["probe", str(number), "inject"], env=environment(), check=True, capture_output=True)
        yield str(number)


def shown(columns: int, *args: str) -> list[str]:
    """Return the lines that `probe` writes on a terminal with that many columns."""
    with terminal(*args, columns=columns) as (screen, running):
        lines = plain(screen.read_all()).splitlines()
        assert running.wait(60) == 0, lines
    # Remarks, why a table has no rows for one, are for stderr and as long as they are.
    return [line.rstrip() for line in lines if ": no rows" not in line]


@pytest.mark.parametrize("columns", [80, 100, 160])
@pytest.mark.parametrize(("command", "key"), [("tables", "table"), ("config", "name")])
def test_every_name_is_whole_and_every_line_fits(pid: str, probe: Probe, command: str, key: str, columns: int) -> None:
    known = [row[key] for row in json.loads(probe(pid, command, "--format", "json").stdout)]

    lines = shown(columns, pid, command)

    assert [line.split("  ")[0] for line in lines if line.split("  ")[0] in known] == known
    assert max(map(len, lines)) <= columns
    assert not any(line.endswith("…") and not line.endswith("`probe …") for line in lines)


def test_text_left_out_on_a_terminal_comes_on_request_and_in_a_pipe(pid: str, probe: Probe) -> None:
    brief, long, piped = (shown(100, pid, "tables"), shown(100, pid, "tables", "--long"), probe(pid, "tables").stdout)

    assert "lost" not in " ".join(brief[0].split())
    for text in (" ".join(long), piped):
        assert {"kind", "lost", "first", "last"} <= set(text.split())
    assert max(map(len, long)) <= 100
    assert "PROBE_TRACE_EVERY" in " ".join(shown(100, pid, "config", "--long"))
    assert "PROBE_TRACE_EVERY" in probe(pid, "config").stdout


def test_the_columns_of_one_table_are_whole_too(pid: str, probe: Probe) -> None:
    columns = json.loads(probe(pid, "tables", "python.profile_ops", "--format", "json").stdout)

    lines = shown(80, pid, "tables", "python.profile_ops")

    names = [column["column"] for column in columns]
    assert [line.split("  ")[0] for line in lines if line.split("  ")[0] in names] == names
    assert lines[0].startswith("python.profile_ops: ")
