"""What can be held of the language of the pages: words of the glossary, honest gaps, and no workplace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.glossary import violations

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "docker/*.md", "benchmarks/*.md") for path in ROOT.glob(pattern)
)
SOURCES = sorted(
    path
    for folder in ("probe_agent", "probe_cli", "tests", "benchmarks", "docs", "docker")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".md", ".py", ".toml", ".yaml", ".pth") and path != Path(__file__)
)
#: Words of a workplace: what the project has to say stands in its code, its pages and its decisions.
WORKPLACE = re.compile(
    r"(?<![\w/.])/work/|\b[Ii]ssues? #?\d|\b(this|last|next|another) session of (ours|work)\b|\bBRIEF\d*\b"
)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_keeps_to_the_glossary(page: Path) -> None:
    assert violations(page.read_text(encoding="utf-8")) == []


def test_docstrings_and_comments_keep_to_the_glossary() -> None:
    sources = [path for path in SOURCES if path.suffix == ".py" and path.name != "glossary.py"]
    found = {named(path): violations(path.read_text(encoding="utf-8")) for path in sources}

    assert {path: words for path, words in found.items() if words} == {}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_that_says_not_measured_gives_the_reason(page: Path) -> None:
    paragraphs = re.split(r"\n\s*\n|\n[-|]", page.read_text(encoding="utf-8"))
    claims = [text for text in paragraphs if re.search(r"\bnot (been )?measured\b", text, re.IGNORECASE)]

    assert [text for text in claims if not re.search(r"\b(because|since|as)\b|:", text)] == []


def test_no_file_speaks_of_a_workplace() -> None:
    speaking = [
        f"{named(path)}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if WORKPLACE.search(line)
    ]

    assert speaking == []


def test_the_glossary_finds_what_it_is_for() -> None:
    text = "A training process runs.\nIt cut a training to 3.1 thousand million, some 30 ms a step, of all trainings."

    assert [line.partition(":")[0] for line in violations(text)] == ["line 2"] * 4
