"""The repl runs a complete statement and waits for the rest of an incomplete one."""

from __future__ import annotations

import pytest

from probe_cli.repl.lines import is_complete


@pytest.mark.parametrize(
    "text", ["x = 1", "print(1)", "for i in x:\n    y\n", "x = (1,\n  2)", "this is wrong", "1 +* 2"]
)
def test_statements_that_can_be_run_or_refused_are_complete(text: str) -> None:
    assert is_complete(text)


@pytest.mark.parametrize("text", ["for i in x:", "for i in x:\n    y", "x = (1,", '"""text', "@decorated"])
def test_an_unfinished_statement_is_not_complete(text: str) -> None:
    assert not is_complete(text)
