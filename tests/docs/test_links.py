"""Every relative link in our Markdown leads to a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#]+)(#[^)]*)?\)")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docker").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    links = [found[0] for found in LINK.findall(page.read_text()) if "://" not in found[0]]

    broken = [link for link in links if not (page.parent / link).exists()]

    assert broken == []
