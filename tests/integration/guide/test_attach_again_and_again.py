"""A job that is attached to repeatedly computes the same as its undisturbed twin."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from probe_cli.main import run

from .conftest import training

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


def result(output: str) -> tuple[int, str]:
    """Return the number of steps and the digest of the parameters, from the last line of a job."""
    found = re.fullmatch(r"finished: (\d+) steps, parameters (\w+)\n", output)
    assert found, output
    return int(found[1]), found[2]


@pytest.mark.long
@pytest.mark.parametrize("num_attaches", [8, 100])
def test_a_job_attached_to_repeatedly_equals_its_twin_bit_for_bit(
    num_attaches: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    probed_log, twin_log, stop = tmp_path / "probed", tmp_path / "twin", tmp_path / "stop"
    arguments = ["--loss-log", str(probed_log), "--stop-file", str(stop)]

    with training("guide_locals.py", tmp_path, *arguments) as probed:
        answers = [visit(str(probed.pid), capfd) for _ in range(num_attaches)]
        stop.touch()
        num_steps, parameters = result(probed.communicate(timeout=30)[0])
    with training("guide_locals.py", tmp_path, "--loss-log", str(twin_log), "--steps", str(num_steps)) as twin:
        twin_result = result(twin.communicate(timeout=120)[0])

    assert answers == ["0 0 0"] * num_attaches
    assert probed.returncode == 0
    assert twin_result == (num_steps, parameters)
    assert probed_log.read_text() == twin_log.read_text()


def visit(pid: str, capfd: pytest.CaptureFixture[str]) -> str:
    """Attach, query, detach; return the exit codes, and the output of those that are not 0."""
    commands = [["inject"], ["query", "SELECT COUNT(*) FROM python.steps"], ["detach"]]
    codes = [run([pid, *command]) for command in commands]
    said = capfd.readouterr()
    return " ".join(map(str, codes)) if codes == [0, 0, 0] else f"{codes} {said.out} {said.err}"
