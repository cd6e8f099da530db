"""Every view of the dashboard over a real job of four ranks: what it shows, who sees what, and what a hang looks
like."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browsing, browsing
from support.waiting import until

from probe_agent.server.dashboard.files import DIST

from .conftest import Job

pytestmark = [pytest.mark.long, pytest.mark.torch, pytest.mark.timeout(400)]

VIEWS = {
    "well": ("stepping", 2),
    "slow": ("", 1),
    "time": ("of a step of", 3),
    "hang": ("no hang", 0),
    "memory": ("host memory", 3),
    "step": ("came last to", 1),
    "flame": ("most own time on rank", 0),
    "learning": ("loss", 3),
    "hosts": ("4 ranks on 1 host", 0),
    "overhead": ("of the training thread", 1),
    "sql": ("one read-only SELECT", 0),
    "console": ("runs in rank", 0),
}


@pytest.fixture(scope="module")
def page(job: Job) -> Iterator[Browsing]:
    with browsing() as browser:
        browser.enter(job.link())
        yield browser


@pytest.fixture(autouse=True)
def nothing_of_the_test_before(page: Browsing) -> None:
    page.errors.clear()


def unharmed(page: Browsing) -> None:
    errors, page.errors[:] = list(page.errors), []
    assert errors == []
    assert page.hosts == {"127.0.0.1"}


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_answers_with_a_verdict_and_its_evidence(page: Browsing, job: Job, view: str) -> None:
    said, num_charts = VIEWS[view]
    page.show(view, job=job.name)

    verdict = until(lambda: _verdict(page, said), timeout_s=90, says=page.page.locator("main").inner_text)
    until(lambda: page.page.locator("canvas").count() >= min(num_charts, 1), timeout_s=60)

    assert verdict
    assert page.page.locator("main .failure").count() == 0
    unharmed(page)


def _verdict(page: Browsing, said: str) -> str:
    text = " ".join(page.page.locator(".verdict, .big").all_inner_texts())
    return text if said.lower() in text.lower() and "…" not in text else ""


def test_names_that_try_to_be_html_stay_text(page: Browsing, job: Job) -> None:
    evil = "<img src=x onerror=alert(1)>"
    page.show("sql", job=job.name, q=f"SELECT '{evil}' AS \"{evil}\", '</script><b>' AS other".replace("=", "%3D"))
    page.page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for("td", evil)
    page.show("flame", job=job.name)
    page.wait_for(".flames", evil)
    page.show("console", job=job.name)
    page.page.get_by_label("Python").fill(f"raise ValueError('{evil}')")
    page.page.get_by_role("button", name="Run").click()
    page.wait_for(".console .stderr", evil)

    assert page.page.locator("main img").count() == 0
    unharmed(page)


def test_the_console_runs_python_in_the_rank_that_is_chosen(page: Browsing, job: Job) -> None:
    page.show("console", job=job.name, rank=2)
    page.page.get_by_label("Python").fill("rank * 1000 + 7")
    page.page.get_by_label("Python").press("Enter")

    assert page.wait_for(".console .result") == "2007"
    unharmed(page)


def test_a_statement_that_fails_says_why_and_what_to_do(page: Browsing, job: Job) -> None:
    page.show("sql", job=job.name, q="SELECT stepp FROM python.steps")
    page.wait_for(".editor")
    page.page.get_by_role("button", name="Run", exact=True).click()

    assert "stepp" in page.wait_for("main .failure")
    page.errors.clear()  # the browser itself prints the status 422


def test_keys_lead_everywhere_and_pause(page: Browsing, job: Job) -> None:
    page.show("well", job=job.name)
    page.page.locator("main").focus()
    for key, title in (("4", "Is it hung, and why?"), ("5", "Memory"), ("1", "Is it well?")):
        page.page.keyboard.press(key)
        page.wait_for("h1", title)
    page.page.keyboard.press("p")
    page.wait_for("button", "Paused")
    page.page.keyboard.press("p")
    page.page.keyboard.press("?")
    page.wait_for("aside", "pause or go on")
    page.page.keyboard.press("Escape")
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.tagName") in ("A", "BUTTON", "SELECT", "SUMMARY", "DIV")
    unharmed(page)


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, as the lockfile has it."""
    folder, npm = tmp_path_factory.mktemp("axe"), shutil.which("npm")
    if npm is None:
        pytest.skip("npm is missing, which fetches axe-core")
    for name in ("package.json", "package-lock.json", ".npmrc"):
        shutil.copy(Path(DIST).with_name(name), folder)
    subprocess.run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, check=True, timeout=120)
    return (folder / "node_modules/axe-core/axe.min.js").read_text()


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_in_any_view(job: Job, axe: str, dark: bool) -> None:
    with browsing(dark=dark) as browser:
        browser.enter(job.link())
        found = {}
        for view in VIEWS:
            browser.show(view, job=job.name)
            browser.page.wait_for_timeout(2500)
            browser.page.evaluate(axe)
            result = browser.page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'best-practice']})")
            found[view] = [f"{one['id']}: {one['nodes'][0]['html'][:120]}" for one in result["violations"]]
    assert {view: said for view, said in found.items() if said} == {}


def test_a_reader_sees_no_control_and_gets_none(job: Job) -> None:
    with browsing() as browser:
        browser.enter(job.link("--read"))
        browser.show("well", job=job.name)
        browser.wait_for(".tag", "read only")
        names = browser.page.locator("nav a").all_inner_texts()
        browser.show("flame", job=job.name)
        browser.wait_for(".flames", "all")
        num_buttons = browser.page.get_by_role("button", name=re.compile("Sample")).count()
        browser.page.evaluate("location.hash = '#/console'")
        browser.wait_for("h1", "Is it well?")
        refused = browser.page.evaluate(
            "fetch('/v1/eval?rank=0', {method: 'POST', body: '{\"code\": \"1\"}', headers:"
            " {'Content-Type': 'application/json', 'X-Probe-Key': localStorage.getItem('probe-key')}})"
            ".then(answer => answer.status)"
        )

    assert "Console" not in names
    assert num_buttons == 0
    assert refused == 403


def test_it_can_be_read_on_a_phone(job: Job) -> None:
    with browsing(width=390, height=844) as browser:
        browser.enter(job.link())
        for view in VIEWS:
            browser.show(view, job=job.name)
            browser.page.wait_for_timeout(1500)
            wide = browser.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 390, view


def test_a_slow_rank_is_on_top_of_the_picture(page: Browsing, job: Job) -> None:
    job.order("slow")
    try:
        page.show("slow", job=job.name, last=50, metric="other")
        first = until(lambda: _slowest(page), timeout_s=100, says=page.page.locator("main").inner_text)
        told = [_told_at(page, part) for part in (0.15, 0.95)]  # 50 steps, in a picture with room for 200
    finally:
        job.take_back("slow")

    assert first == "3"
    assert "the median by" in told[0]
    assert told[1] == "Point at a cell."
    unharmed(page)


def _told_at(page: Browsing, part: float) -> str:
    """Return what the page says of a cell of the first row, `part` of the way across the picture."""
    box = page.page.locator("canvas").first.bounding_box()
    assert box is not None
    page.page.mouse.move(box["x"] + part * box["width"], box["y"] + 20)
    return str(page.page.locator(".told").first.inner_text())


def _slowest(page: Browsing) -> str:
    """The rank that is slow in more than half of the steps, as the table beside the picture has it."""
    rows = page.page.locator("[aria-label='Ranks that are often slow'] tbody tr")
    if not rows.count():
        return ""
    rank, slow = rows.first.locator("td").all_inner_texts()[:2]
    num, _, of = slow.partition(" of ")
    return rank if int(num) > 0.5 * int(of) else ""


def test_a_hang_appears_is_seen_and_is_explained(page: Browsing, job: Job) -> None:
    page.show("well", job=job.name)
    job.order("hang")
    try:
        page.wait_for(".big.bad", re.compile("silent for", re.IGNORECASE), timeout_s=90)  # type: ignore[arg-type]
        page.page.get_by_role("link", name=re.compile("Why")).click()
        said = page.wait_for(".verdict.bad", "rank 1", timeout_s=90)
        odd = page.page.locator(".stack summary").first.inner_text()
        stack = page.page.locator(".stack").first.inner_text()
    finally:
        job.take_back("hang")

    assert "hang" in said
    assert "rank 1" in odd
    assert "wait_for_orders" in stack
    page.show("well", job=job.name)
    page.wait_for(".big.good", timeout_s=90)
    unharmed(page)


def test_what_a_view_shows_is_in_its_address(page: Browsing, job: Job) -> None:
    page.show("step", job=job.name)
    page.wait_for("main button", "Previous")
    until(lambda: page.page.locator("main button:not([disabled])", has_text="Previous").count(), timeout_s=60)
    page.page.get_by_role("button", name="Previous").click()
    address = until(lambda: page.page.url if "step=" in page.page.url else "")
    page.show("well", job=job.name)
    page.page.goto(address)

    step = json.loads(re.findall(r"step=(\d+)", address)[0])
    page.wait_for(".verdict", f"{step:,}")
    unharmed(page)
