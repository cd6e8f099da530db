"""Cost of the dashboard, measured in a browser: `python -m benchmarks.dashboard`.

2,048 simulated ranks on 256 hosts (scale.py), 200 steps each, and Debian's Chromium at the host server of the first:
first paint, every view, interaction, the heat map, bytes on the wire, and CPU time while the page is open, of that
server with the commands that it runs and of all other hosts. These hosts share one processor, since the browser's
machine does not do their work in real life; on a machine of two the browser has the other.

`--job` measures a real job of four ranks instead: its CPU time a step with the page closed and open, in shuffled order.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .agent import PROBE, attach
from .machine import ROOT, provenance
from .process import Program, plain_environment, tree_cpu_s
from .scale import RANKS_A_HOST, fill
from .simulated import addresses_of, serving
from .spread import figure, ratio, table

sys.path.insert(0, str(ROOT / "tests"))

__all__ = ["main"]

VIEWS = ("well", "slow", "time", "hang", "memory", "step", "flame", "learning", "hosts", "overhead", "sql", "console")
OPEN_S = 60.0
#: With `--job`: from a page's opening to the first step that counts.
SETTLE_S = 3.0
#: How long the heat map may take to appear.
HEAT_S = 240
FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
#: Time from an input to the next frame that is painted, in milliseconds.
PAINTED = """async act => {
  const began = performance.now();
  await eval(act);
  await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - began;
}"""


def _serve(base: str, path: str) -> None:
    """The host server over simulated targets, which are held as living ones already, on its unix socket, as a command
    would have started it."""
    from probe_agent.server.access.roles import Access
    from probe_agent.server.app import create_app
    from probe_agent.server.hosting import Hosting
    from probe_agent.targets import TargetDirectory

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # as every host server does
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(128)
    app = create_app(TargetDirectory((base,)), access=Access(None))
    Hosting(app, [listener], None, lambda: None).run(ready=lambda: print("ready", flush=True))


@contextmanager
def _first_host(base: Path) -> Iterator[tuple[str, int]]:
    path = str(base / "host.sock")
    command = [sys.executable, "-m", "benchmarks.dashboard", "--serve", str(base / "0" / "0"), path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=plain_environment(), cwd=ROOT) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        try:
            yield f"unix:{path}", server.pid
        finally:
            server.terminate()


def _link(*words: str, **variables: str) -> str:
    command = [PROBE, *words, "dashboard", "--no-open"]
    done = subprocess.run(command, capture_output=True, text=True, env=plain_environment() | variables, check=True)
    return done.stdout.strip()


def _simulated(num_ranks: int, num_steps: int, rounds: int) -> None:
    num_hosts = -(-num_ranks // RANKS_A_HOST)
    addresses = addresses_of(num_hosts)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        base = Path(name)
        fill(base, addresses, num_ranks, num_steps, hangs=False)
        every = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(every)})  # processes that are started now inherit it
        with serving(base, addresses) as hosts_cpu_s, _first_host(base) as (endpoint, server):
            os.sched_setaffinity(0, every)
            for _ in range(rounds):
                _look_around(endpoint)
            rows = _left_open(endpoint, server, hosts_cpu_s)
    print(f"{num_ranks:,} ranks on {num_hosts} hosts, {num_steps} steps; {rounds} browsers, medians with their 95 %"
          " interval.\n")  # fmt: skip
    shown = [[what, figure(seen).show(1e3, 0), f"{1e3 * max(seen):.0f}"] for what, seen in _TIMES.items() if seen]
    print(table(["", "ms", "longest, ms"], shown))
    print()
    headings = ["open view", "KiB a minute", "cores, its server and commands", "cores, all other hosts"]
    print(table(headings, rows))
    print()


#: What was timed in the browser, in seconds.
_TIMES: dict[str, list[float]] = {
    "first paint": [],
    "heat map there, from the address": [],
    "heat map drawn": [],
    "pointer moved over the heat map": [],
    "metric of the heat map changed": [],
    "view shown after a key or link": [],
    "any chart drawn": [],
}


def _look_around(endpoint: str) -> None:
    """One browser: the heat map, then every view."""
    from support.browser import browsing

    with browsing() as browser:
        browser.enter(_link("-t", endpoint))
        page = browser.page
        _TIMES["first paint"].append(page.evaluate(FIRST_PAINT) / 1e3)
        browser.show("slow")
        began = page.evaluate("performance.now()")
        browser.wait_for("canvas", timeout_s=HEAT_S)
        _TIMES["heat map there, from the address"].append((page.evaluate("performance.now()") - began) / 1e3)
        page.wait_for_timeout(1000)
        _TIMES["heat map drawn"] += _measures(page, "Deviation")
        box = page.locator("canvas").first.bounding_box()
        assert box is not None
        _TIMES["pointer moved over the heat map"] += [_hover(page, box, at) for at in range(20)]
        act = (
            "(select => { select.value = 'duration'; select.dispatchEvent(new Event('change', {bubbles: true})) })"
            "(document.querySelector('main select'))"
        )
        _TIMES["metric of the heat map changed"].append(page.evaluate(PAINTED, act) / 1e3)
        for view in VIEWS:
            _TIMES["view shown after a key or link"].append(page.evaluate(PAINTED, f"location.hash = '#/{view}'") / 1e3)
            page.wait_for_timeout(1500)
        _TIMES["any chart drawn"] += _measures(page, "")


def _left_open(endpoint: str, server: int, hosts_cpu_s: Callable[[], float]) -> list[list[object]]:
    """Measure the cost of a page that is left open."""
    from support.browser import browsing

    rows: list[list[object]] = []
    with browsing() as browser:
        client = browser.page.context.new_cdp_session(browser.page)
        client.send("Network.enable")
        received: list[float] = []
        client.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
        browser.enter(_link("-t", endpoint))
        for view in ("well", "slow"):
            browser.show(view)
            browser.wait_for("canvas", timeout_s=HEAT_S)
            received.clear()
            before, others_before = tree_cpu_s(server), hosts_cpu_s()
            browser.page.wait_for_timeout(1000 * OPEN_S)
            used, others = tree_cpu_s(server) - before, hosts_cpu_s() - others_before
            kib = f"{sum(received) / OPEN_S * 60 / 1024:,.0f}"
            rows.append([view, kib, f"{used / OPEN_S:.2f}", f"{others / OPEN_S:.2f}"])
    return rows


def _measures(page: Any, label: str) -> list[float]:
    """Times that the page has taken to draw charts whose label begins so, in seconds."""
    found = page.evaluate(
        "label => performance.getEntriesByName('chart')"
        ".filter(one => one.detail.startsWith(label)).map(one => one.duration)",
        label,
    )
    return [one / 1e3 for one in found]


def _hover(page: Any, box: dict[str, float], at: int) -> float:
    x, y = box["x"] + box["width"] * (0.2 + 0.03 * at), box["y"] + box["height"] * (0.2 + 0.02 * at)
    act = (
        f"document.elementFromPoint({x}, {y}).dispatchEvent(new MouseEvent('mousemove',"
        f" {{bubbles: true, clientX: {x}, clientY: {y}}}))"
    )
    return float(page.evaluate(PAINTED, act)) / 1e3


def _beside_a_job(rounds: int, seconds: float) -> None:
    """The CPU time of a step with ours or an empty page in the browser, which is on another machine in real life."""
    from support.browser import browsing

    closed: list[float] = []
    opened: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="probe-") as runtime,
        Program("blocks", "--model", "mlp", "--ranks", "4") as job,
    ):
        attach(job, 400)
        for _ in range(rounds):
            with browsing() as browser:
                browser.enter(_link(str(job.pids[0]), PROBE_RUNTIME_DIR=runtime))
                browser.wait_for("canvas")
                address = browser.page.url
                for seen in random.sample((closed, opened), 2):
                    browser.page.goto("about:blank" if seen is closed else address)
                    browser.page.wait_for_timeout(1000 * SETTLE_S)
                    seen.append(_step_s(job, seconds))
        subprocess.run([PROBE, "stop"], env=plain_environment() | {"PROBE_RUNTIME_DIR": runtime}, check=False)
    print(f"4 ranks, {rounds} pairs of blocks of {seconds:g} s, the view Is it well.\n")
    print(table(["CPU time of a step with an open page", ""], [["change", ratio(opened, closed).show_change()]]))
    print()


def _step_s(job: Program, seconds: float) -> float:
    """CPU seconds of all ranks for a step of rank 0."""
    before = job.cpu_s()
    block = job.block(seconds=seconds)
    return (job.cpu_s() - before) / block.num_pieces


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--job", action="store_true", help="a real job of four ranks, and nothing simulated")
    parser.add_argument("--seconds", type=float, default=15.0, help="with --job: length of a block")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        _serve(*args.serve)
        return
    if args.job:
        _beside_a_job(args.rounds, args.seconds)
    else:
        _simulated(args.ranks, args.steps, args.rounds)
    print(provenance())


if __name__ == "__main__":
    main()
