"""Debian's Chromium, driven through the dashboard by Playwright: no request leaves this machine, no error goes
unseen."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import Page, Playwright, sync_playwright

__all__ = ["CHROMIUM", "Browsing", "browsing"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


#: The Playwright that runs, if one does.
_running: list[Playwright] = []


@dataclass
class Browsing:
    """A page, and everything that went wrong on it."""

    page: Page
    #: Errors of the console and of scripts, and violations of the page's policy.
    errors: list[str] = field(default_factory=list)
    #: Hosts that were asked.
    hosts: set[str] = field(default_factory=set)

    def enter(self, link: str) -> None:
        """Open a link of `probe … dashboard`, and wait until the page is there."""
        self.page.goto(link)
        self.page.wait_for_selector("main h1")

    def show(self, view: str, **params: object) -> None:
        """Go to a view by its address."""
        named = "&".join(f"{name}={value}" for name, value in params.items())
        self.page.evaluate("address => { location.hash = address }", f"#/{view}?{named}")
        self.page.wait_for_selector(f"nav a[aria-current][href*='/{view}']")

    def wait_for(self, selector: str, text: str = "", timeout_s: float = 60) -> str:
        """Wait for an element (with this text), and return its text."""
        found = self.page.locator(selector).filter(has_text=text).first
        found.wait_for(timeout=1000 * timeout_s)
        return found.inner_text()


@contextmanager
def _playwright() -> Iterator[Playwright]:
    """One for all browsers that are open at a time, because it cannot be started twice. It ends with the first of
    them: while it runs, `asyncio.run` is refused."""
    if _running:
        yield _running[0]
        return
    with sync_playwright() as started:
        _running.append(started)
        try:
            yield started
        finally:
            _running.clear()


@contextmanager
def browsing(width: int = 1280, height: int = 860, dark: bool = False) -> Iterator[Browsing]:
    """A new browser without any memory; DNS leads nowhere, so a request to elsewhere fails and is seen."""
    with _playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[*_OPTIONS, "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
            env={**os.environ, "HOME": "/nonexistent"},
        )
        try:
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
            )
            seen = Browsing(context.new_page())
            page = seen.page
            page.on(
                "console", lambda said: seen.errors.append(said.text) if said.type in ("error", "warning") else None
            )
            page.on("pageerror", lambda error: seen.errors.append(str(error)))
            page.on("dialog", lambda dialog: (seen.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
            page.on("request", lambda request: seen.hosts.add(urlsplit(request.url).hostname or request.url[:20]))
            yield seen
        finally:
            browser.close()
