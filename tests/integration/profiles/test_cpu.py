"""`probe … profile --cpu`: stacks sampled from outside, in each format, by PID and by host:port."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from probe_agent.inject import py_spy

from .conftest import Start, Training, run_probe

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(py_spy._reader() is None, reason="py-spy is not installed"),
]
SERVER = """
import socket, sys, uvicorn
from probe_agent.targets import TargetDirectory
from probe_agent.server.app import create_app
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
app = create_app(TargetDirectory((sys.argv[1],)))
uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)).run([listener])
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The host:port of a server that has one job."""
    base = tmp_path_factory.mktemp("host")
    training = Training("--base", str(base))
    command = [sys.executable, "-c", SERVER, str(base)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield f"127.0.0.1:{server.stdout.readline().strip()}"
        server.kill()
    training.process.kill()
    training.process.communicate()


def test_the_hottest_lines_are_shown_without_an_agent(start: Start) -> None:
    training = start(forked=False)

    rows = json.loads(training.probe("profile", "--cpu", "1s", "--idle", "--format", "json").stdout)

    lines = [row["line"] for row in rows]
    assert any(str(line).startswith("targets/profiled_training.py:") for line in lines), lines
    assert sum(row["percent"] for row in rows) == pytest.approx(100, abs=0.1 * len(rows))
    assert not list(Path("/dev/shm").glob(f"probe-*/{training.pid}-*"))
    both = training.probe("profile", "--cpu", "1s", "--idle").stdout
    functions, lines = both.split("\n\n")
    rows = {line.split()[0]: line.split()[1] for line in functions.splitlines()[2:] if line[0] != "("}
    assert {"Trainer.train", "main.<locals>.read", "main"} <= set(rows)
    files = {file for file in rows.values() if "." in file}  # py-spy now and then reads a text of another object
    assert files == {"targets/profiled_training.py"}, "the job's own, and no library's"
    assert "targets/profiled_training.py:" in lines
    training.send("end")
    assert training.end() == ""


def test_every_form_is_written_by_its_ending(served: str, tmp_path: Path) -> None:
    for ending in ("svg", "html", "json", "folded"):
        done = run_probe(served, "profile", "--cpu", "1", "--idle", "--out", str(tmp_path / f"flame.{ending}"))
        assert "samples of Probe's own threads are left out" in done.stderr

    for ending in ("svg", "folded"):
        assert "boot.py" not in (tmp_path / f"flame.{ending}").read_text()

    picture = ElementTree.parse(tmp_path / "flame.svg").getroot()
    assert picture.tag.endswith("svg")
    boxes = {element[0].text: element[1].get("width") for element in picture.iter() if element.tag.endswith("}g")}
    threads = [float(width[:-1]) for name, width in boxes.items() if name.startswith("thread (")]
    assert sum(threads) == pytest.approx(100, abs=0.1), "no hole where our threads were"
    assert len(threads) == 2
    assert "data:image/svg+xml;base64," in (tmp_path / "flame.html").read_text()
    speedscope = json.loads((tmp_path / "flame.json").read_text())
    assert "speedscope" in speedscope["$schema"]
    assert len(speedscope["profiles"]) == 2
    stacks = (tmp_path / "flame.folded").read_text().splitlines()
    assert any("profiled_training.py" in stack and stack.rpartition(" ")[2].isdigit() for stack in stacks)
    assert len(list(tmp_path.iterdir())) == 4
    refused = run_probe(served, "profile", "--cpu", "1", "--out", str(tmp_path / "flame.pdf"), code=2)
    assert "use .svg, .html, .json or .folded" in refused.stderr


def test_steps_and_trace_come_over_http_too(served: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"

    shown = run_probe(served, "profile", "--steps", "2", "--out", str(trace))

    assert "Optimizer.step#SGD.step" in shown.stdout
    assert "2 steps from step " in shown.stderr
    assert len(json.loads(trace.read_text())["traceEvents"]) > 50
