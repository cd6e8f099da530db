"""Few tests may run a second time, and each gives a reason; any other failure is a failure."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from support.busy_machine import MARK, ONLY_MARKED_FAILED, marked_tests

TESTS = Path(__file__).parents[1]
MOST = 15


def test_few_tests_may_run_a_second_time_and_each_says_why() -> None:
    marked = list(marked_tests(TESTS))

    assert len(marked) <= MOST, [one.test for one in marked]
    assert [one.test for one in marked if len(one.reason.split()) < 4] == []


def test_the_mark_is_found_wherever_it_is() -> None:
    """Only functions may carry it: the mark of a module, a class or one parameter would not be counted."""
    trees = [ast.parse(text) for path in TESTS.rglob("*.py") if MARK in (text := path.read_text())]
    uses = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == MARK]

    assert len(uses) == len(list(marked_tests(TESTS)))


@pytest.mark.parametrize(
    ("others", "code"), [("True", ONLY_MARKED_FAILED), ("False", 1)], ids=["only marked ones", "another one, too"]
)
def test_only_failures_of_marked_tests_are_tried_again(others: str, code: int, tmp_path: Path) -> None:
    for name in ("conftest.py", "support"):
        (tmp_path / name).symlink_to(TESTS / name)
    (tmp_path / "test_all.py").write_text(
        f"import pytest\n\n@pytest.mark.{MARK}('it fails to show that')\ndef test_marked():\n    assert False\n\n"
        f"def test_other():\n    assert {others}\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", tmp_path, "-p", "no:cacheprovider", tmp_path],
        capture_output=True,
        text=True,
    )

    assert done.returncode == code, done.stdout
