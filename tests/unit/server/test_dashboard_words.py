"""The words by which the dashboard's views tell verdicts apart are those of the commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from probe_agent.server import dashboard
from probe_cli.cluster.hang import verdict
from probe_cli.cluster.memory.trend import State

VIEWS = Path(dashboard.__file__).parent / "src" / "views"


def words(view: str, name: str) -> set[str]:
    """Return the words between the brackets of a constant, other constants of the view inserted."""
    source = (VIEWS / view).read_text()
    constants = dict(re.findall(r"^const (\w+) = '([^']*)';", source, re.MULTILINE))
    found = re.search(rf"^const {name} = [\[{{](.*)[\]}}];", source, re.MULTILINE)
    assert found is not None
    parts = [part.split(":")[0].strip() for part in found[1].split(",")]
    return {constants.get(part, part.strip("'")) for part in parts if part}


@pytest.mark.parametrize(
    ("view", "name", "known"),
    [
        ("memory.jsx", "STATES", {state.value for state in State}),
        ("hang.jsx", "TONES", {state.label for state in verdict.State if state is not verdict.State.ENDED}),
    ],
)
def test_each_state_is_known(view: str, name: str, known: set[str]) -> None:
    assert words(view, name) == known
