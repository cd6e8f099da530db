"""Pictures of the dashboard for the docs, taken in a browser: `python docs/pictures.py` writes docs/pictures/*.png.

Starts the job of tests/targets/watched_job.py (four ranks, one of them slow now and then), opens each view in Debian's
Chromium, and takes the picture of the job that hangs last. Takes two minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.browser import Browsing, browsing  # noqa: E402  # the tests are no package of ours
from support.commands import environment, probe  # noqa: E402
from support.ports import free_address  # noqa: E402
from support.waiting import until  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
#: A page that takes more is shown as far as it fits the window.
MAX_BYTES = 150 * 1024
#: View, what its verdict says once it is there, and parameters of its address.
VIEWS = (
    ("well", "stepping", {}),
    ("slow", "rank", {}),
    ("time", "of a step of", {"last": 50}),
    ("memory", "host memory", {}),
    ("step", "came last", {}),
    ("flame", "rank", {"rank": 3, "diff": 1}),
    ("learning", "loss", {"last": 1000}),
    ("hosts", "ranks on", {}),
    ("overhead", "training thread", {}),
    ("sql", "rows in", {}),
    ("console", "runs in rank", {"rank": 0}),
)
SQL = (
    "SELECT rank, step, duration FROM python.steps WHERE step > (SELECT max(step) - 60 FROM python.steps) AND rank = 3"
    " ORDER BY step"
)
STEPS = 120


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="probe-") as runtime, tempfile.TemporaryDirectory() as folder:
        os.environ["PROBE_RUNTIME_DIR"] = runtime
        port = free_address().rpartition(":")[2]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--master-port", port]
        command = [*torchrun, str(ROOT / "tests" / "targets" / "watched_job.py"), folder, "third"]
        with subprocess.Popen(command, env=environment(PROBE="1"), stderr=subprocess.DEVNULL) as running:
            try:
                job = until(lambda: _job(running.pid), timeout_s=300)
                _take(job, Path(folder))
            finally:
                for what in ("hang", "stop"):
                    (Path(folder) / what).unlink(missing_ok=True)
                running.terminate()
                running.wait(30)
                probe("stop")


def _job(launcher: int) -> str:
    """The name of the job, once it has done enough steps to look at."""
    pids = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    sql = "SELECT any_value(job), max(step) FROM python.steps"
    said = probe("--no-inject", pids[0], "query", sql, "--format", "csv").stdout.split() if pids else []
    name, _, step = said[-1].partition(",") if said else ("", "", "")
    time.sleep(1)
    return name if step.isdigit() and int(step) > STEPS else ""


def _take(job: str, folder: Path) -> None:
    with browsing(width=1180, height=760) as browser:
        browser.enter(probe("dashboard", "--no-open").stdout.strip())
        for view, said, params in VIEWS:
            browser.show(view, job=job, **params)
            if view == "sql":
                _run_sql(browser, job)
            if view == "console":
                browser.page.get_by_label("Python").fill('optimizer.param_groups[0]["lr"], step')
                browser.page.get_by_label("Python").press("Enter")
                browser.wait_for(".console .result")
            _picture(browser, view, said)
        (folder / "hang").touch()
        browser.show("hang", job=job)
        _picture(browser, "hang", "the job hangs")
        (folder / "hang").unlink()
    with browsing(width=1180, height=760, dark=True) as browser:
        browser.enter(probe("dashboard", "--no-open").stdout.strip())
        browser.show("slow", job=job)
        _picture(browser, "slow", "rank", "slow-dark")


def _run_sql(browser: Browsing, job: str) -> None:
    browser.page.evaluate("address => { location.hash = address }", "#/well")
    browser.wait_for("h1", "Is it well?")
    browser.show("sql", job=job, q=SQL.replace(">", "%3E").replace("=", "%3D"), x="step", y="duration")
    browser.wait_for(".editor")
    browser.page.wait_for_timeout(1500)
    browser.page.get_by_role("button", name="Run", exact=True).click()


def _picture(browser: Browsing, view: str, said: str, name: str = "") -> None:
    """Write one picture, once the verdict has been reached and the charts are drawn."""

    def text() -> str:
        return " ".join(browser.page.locator(".verdict, .big").all_inner_texts()).lower()

    def is_asked() -> bool:
        return "Asking the ranks" in browser.page.locator("main").inner_text()

    until(lambda: said in text() and "…" not in text() and not is_asked(), timeout_s=240, says=text)
    browser.page.wait_for_timeout(4000)
    path = PICTURES / f"{name or view}.png"
    browser.page.screenshot(path=path, full_page=True)
    if path.stat().st_size > MAX_BYTES:
        browser.page.screenshot(path=path)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1024:.0f} KiB", flush=True)
    if path.stat().st_size > MAX_BYTES:
        sys.exit(f"{path} is larger than {MAX_BYTES // 1024} KiB: show less, or a smaller window")


if __name__ == "__main__":
    main()
