"""Tests that may run a second time, because a busy machine can make them fail: `@pytest.mark.busy_machine("why")`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MARK", "ONLY_MARKED_FAILED", "Marked", "marked_tests"]

MARK = "busy_machine"
#: pytest's exit code when no other test has failed: `make test` then runs these once more, alone.
ONLY_MARKED_FAILED = 10


@dataclass(frozen=True)
class Marked:
    """A test function with the mark, and the reason given there; empty when there is none."""

    test: str
    reason: str


def marked_tests(folder: Path) -> Iterator[Marked]:
    """Every test in `folder` that has the mark."""
    for path in sorted(folder.rglob("test_*.py")):
        text = path.read_text()
        if f"mark.{MARK}" in text:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef):
                    for decorator in node.decorator_list:
                        if f"mark.{MARK}" in ast.unparse(decorator):
                            yield Marked(f"{path.relative_to(folder)}::{node.name}", _reason(decorator))


def _reason(decorator: ast.expr) -> str:
    values = [*decorator.args, *decorator.keywords] if isinstance(decorator, ast.Call) else []
    match values:
        case [ast.Constant(value=str(reason))]:
            return reason
    return ""
