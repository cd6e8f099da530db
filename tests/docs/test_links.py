"""Relative links, their anchors, and paths of source files in our Markdown exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#]*)(#[^)]*)?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
SOURCE = re.compile(r"`((?:tests|probe_agent|probe_cli|benchmarks|docs)/[\w/.-]+)`")
PAGES = sorted(
    page
    for folder in (".", "docs", "docs/decisions", "docs/reference", "docker", "benchmarks")
    for page in (ROOT / folder).glob("*.md")
)


def links(page: Path) -> list[tuple[Path, str]]:
    """Return (file, anchor) of every relative link of a page."""
    found = LINK.findall(page.read_text(encoding="utf-8"))
    return [(page.parent / path if path else page, anchor) for path, anchor in found if "://" not in path]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    broken = [str(path) for path, _ in links(page) if not path.exists()]
    lost = [
        f"{path}{anchor}" for path, anchor in links(page) if anchor and path.exists() and anchor not in anchors(path)
    ]

    assert broken + lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_source_files_that_a_page_names_exist(page: Path) -> None:
    missing = [path for path in SOURCE.findall(page.read_text(encoding="utf-8")) if not (ROOT / path).exists()]

    assert missing == []


@pytest.mark.parametrize("package", ["probe_agent", "probe_agent/recorder", "probe_cli"])
def test_the_tree_for_contributors_names_every_folder(package: str) -> None:
    tree = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = [folder.name for folder in (ROOT / package).iterdir() if (folder / "__init__.py").exists()]

    assert [name for name in folders if not re.search(rf"^ +{name}/ ", tree, re.MULTILINE)] == []
