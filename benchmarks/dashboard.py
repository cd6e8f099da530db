"""Cost of the dashboard, measured in a browser: `python -m benchmarks.dashboard`.

2,048 simulated ranks behind one host server, 200 steps each, and Debian's Chromium: first paint, every view,
interaction, the heat map alone, bytes on the wire, and CPU time of the server and its workers while the page is open.
With `--job`, a real job of four ranks: its step time with the page closed and open, in turn.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from probe_agent.recorder.hooks.collectives import Collectives
from probe_agent.recorder.ring import folder
from probe_agent.recorder.samplers.process import Samples
from probe_agent.recorder.steps.ends import Steps

from .agent import PROBE
from .machine import ROOT, provenance
from .process import plain_environment
from .simulated import add_target
from .spread import figure, table

sys.path.insert(0, str(ROOT / "tests"))

__all__ = ["main"]

VIEWS = ("well", "slow", "time", "hang", "memory", "step", "flame", "learning", "hosts", "overhead", "sql", "console")
STEP_S = 0.25
SLOW_RANK = 1234
OPEN_S = 60.0
#: Time from an input to the next frame that is painted, in milliseconds.
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
PAINTED = """async act => {
  const began = performance.now();
  await eval(act);
  await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - began;
}"""


def _fill(base: Path, num_ranks: int, num_steps: int) -> None:
    """Rings of a job that has just stepped: one rank is slow in one step of eight, all are a little uneven."""
    draw = random.Random(0)
    now = int(1e6 * (time.time() - num_steps * STEP_S))
    host = socket.gethostname()
    for rank in range(num_ranks):
        steps, calls = [], []
        for step in range(num_steps):
            late = draw.expovariate(200) + 0.12 * (rank == SLOW_RANK and step % 8 == 0)
            began = now + int(step * STEP_S * 1e6)
            arrived = began + int((0.1 + late) * 1e6)
            steps.append(_row(Steps, ts=began + int(STEP_S * 1e6), step=step, duration=STEP_S, data_wait=0.01 + late,
                              forward=0.08, backward=0.14 - min(late, 0.1), optimizer=0.015, loss=3 / (1 + step / 50),
                              lr=1e-3, rss=900.0))  # fmt: skip
            calls.append(_row(Collectives, ts=arrived, start=arrived, step=step, group="0", seq=step, op="all_reduce",
                              bytes=1 << 20, state="completed", seen_by="python"))  # fmt: skip
        sample = [_row(Samples, ts=now, step=num_steps, period=1.0, cpu=0.9, rss=900.0, run_delay=0.0)]
        tables = [(Steps, steps), (Collectives, calls), (Samples, sample)]
        add_target(base, host, 1_000_000 + rank, rank, num_ranks, tables)


def _row(kind: type, **values: object) -> tuple[object, ...]:
    """A row of a table: what is not named is NULL, or the least that its column can hold."""
    least = {"int": 0, "float": 0.0, "text": "", "bool": False, "time": 0}
    return tuple(values.get(column.name, least.get(column.kind)) for column in kind.columns)


def _serve(base: str, path: str) -> None:
    """The host server over the simulated targets, on its unix socket, as a command would have started it."""
    from probe_agent.server.access.roles import Access
    from probe_agent.server.app import create_app
    from probe_agent.server.hosting import Hosting
    from probe_agent.targets import TargetDirectory

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # as every host server does
    held = [folder.hold(str(own)) for own in Path(base).glob("probe-*/*")]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(128)
    app = create_app(TargetDirectory((base,)), access=Access(None))
    Hosting(app, [listener], None, lambda: None).run(ready=lambda: print("ready", len(held), flush=True))


@contextmanager
def _serving(base: Path) -> Iterator[tuple[str, int]]:
    path = str(base / "host.sock")
    command = [sys.executable, "-m", "benchmarks.dashboard", "--serve", str(base), path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=plain_environment(), cwd=ROOT) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("ready")
        try:
            yield f"unix:{path}", server.pid
        finally:
            server.terminate()


def _link(endpoint: str) -> str:
    command = [PROBE, "-t", endpoint, "dashboard", "--no-open"]
    done = subprocess.run(command, capture_output=True, text=True, env=plain_environment(), check=True)
    return done.stdout.strip()


def _cpu_s(pid: int) -> float:
    """CPU time of a process and of all below it, living and ended."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for task in Path(f"/proc/{pid}/task").iterdir():
        children += (task / "children").read_text().split()
    total = own
    for child in set(children):
        try:
            total += _cpu_s(int(child))
        except OSError:
            continue  # it has ended: its parent has its time
    return total


def _simulated(num_ranks: int, num_steps: int, rounds: int) -> None:
    from support.browser import browsing

    with tempfile.TemporaryDirectory(dir="/dev/shm") as base:
        _fill(Path(base), num_ranks, num_steps)
        with _serving(Path(base)) as (endpoint, server):
            paints, switches, drawn, hovers, heat = [], [], [], [], []
            for _ in range(rounds):
                with browsing() as browser:
                    browser.enter(_link(endpoint))
                    page = browser.page
                    paints.append(page.evaluate(FIRST_PAINT) / 1e3)
                    browser.show("slow")
                    browser.wait_for("canvas", timeout_s=180)
                    page.wait_for_timeout(1000)
                    heat += _measures(page, "Deviation")
                    box = page.locator("canvas").first.bounding_box()
                    assert box is not None
                    hovers += [_hover(page, box, at) for at in range(20)]
                    for view in VIEWS:
                        switches.append(page.evaluate(PAINTED, f"location.hash = '#/{view}'") / 1e3)
                        page.wait_for_timeout(1500)
                    drawn += _measures(page, "")
            with browsing() as browser:
                client = browser.page.context.new_cdp_session(browser.page)
                client.send("Network.enable")
                received: list[float] = []
                client.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
                browser.enter(_link(endpoint))
                rows: list[list[object]] = []
                for view in ("well", "slow"):
                    browser.show(view)
                    browser.page.wait_for_timeout(5000)
                    received.clear()
                    before = _cpu_s(server)
                    browser.page.wait_for_timeout(1000 * OPEN_S)
                    used = (_cpu_s(server) - before) / OPEN_S
                    rows.append([view, f"{sum(received) / OPEN_S * 60 / 1024:,.0f}", f"{used:.2f}"])
    print(f"{num_ranks:,} ranks, {num_steps} steps; {rounds} browsers, medians with their 95 % interval.\n")
    figures = [
        ["first paint", paints], ["view shown after a key or link", switches], ["any chart drawn", drawn],
        ["heat map drawn", heat], ["pointer moved over the heat map", hovers],
    ]  # fmt: skip
    shown = [[name, figure(seen).show(1e3, 0), f"{1e3 * max(seen):.0f}"] for name, seen in figures if seen]
    print(table(["", "ms", "longest, ms"], shown))
    print()
    print(table(["open view", "KiB a minute", "CPU of the server and its workers, cores"], rows))
    print()


def _measures(page: object, label: str) -> list[float]:
    """Times that the page has taken to draw charts whose label begins so, in seconds."""
    found = page.evaluate(  # type: ignore[attr-defined]  # Playwright's Page
        "label => performance.getEntriesByName('chart')"
        ".filter(one => one.detail.startsWith(label)).map(one => one.duration)",
        label,
    )
    return [one / 1e3 for one in found]


def _hover(page: object, box: dict[str, float], at: int) -> float:
    x, y = box["x"] + box["width"] * (0.2 + 0.03 * at), box["y"] + box["height"] * (0.2 + 0.02 * at)
    act = (
        f"document.elementFromPoint({x}, {y}).dispatchEvent(new MouseEvent('mousemove',"
        f" {{bubbles: true, clientX: {x}, clientY: {y}}}))"
    )
    return float(page.evaluate(PAINTED, act)) / 1e3  # type: ignore[attr-defined]  # Playwright's Page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        _serve(*args.serve)
        return
    _simulated(args.ranks, args.steps, args.rounds)
    print(provenance())


if __name__ == "__main__":
    main()
