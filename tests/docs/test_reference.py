"""The generated pages match the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_pages_are_fresh() -> None:
    check = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]

    done = subprocess.run(check, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_every_page_of_the_docs_is_linked_from_the_index_or_the_decisions() -> None:
    docs = ROOT / "docs"
    linking = (docs / "index.md").read_text() + (docs / "decisions" / "README.md").read_text()

    unlinked = [page.name for page in docs.rglob("*.md") if page.name not in linking + "index.md README.md"]

    assert unlinked == []
