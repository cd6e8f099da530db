"""Arrays of an .npz file that are read for each sample."""

from __future__ import annotations

import pytest

from probe_agent.wire import Frame
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.sampling import Stack

from .conftest import Judged, Steps
from .looking import Told, looked

OWN = Frame("Ratings.__getitem__", "/job/data.py", 40, 1, "python", '    return self.table["dense"][index]')
LIBRARY = "/x/site-packages/numpy/lib/{}.py"
UNPACKS = Frame("ZipExtFile.read", "/usr/lib/python3.11/zipfile.py", 9, 0, "python", None)
SUSPECTED = Finding("", Certainty.SUSPECTED, cost_s=0.1, ranks=(0,))


@pytest.mark.parametrize(("module", "func"), [("_npyio_impl", "NpzFile.__getitem__"), ("npyio", "__getitem__")])
def test_the_line_that_asks_for_the_array_is_named(module: str, func: str) -> None:
    reads = Stack((UNPACKS, Frame(func, LIBRARY.format(module), 7, 0, "python", None), OWN))
    told = Told(stacks_of_0=[reads] * 12, more_stacks_of_0=[reads] * 8)

    (found,) = looked("npz-read-again", told, [SUSPECTED])

    assert found.where.startswith("__getitem__ (data.py:40)")
    assert found.share == 1.0


def test_another_line_of_the_data_set_is_fine() -> None:
    told = Told(stacks_of_0=[Stack((OWN,))] * 12, more_stacks_of_0=[])

    assert looked("npz-read-again", told, [SUSPECTED]) == []


def test_only_steps_with_time_outside_of_the_model_are_suspected(judged: Judged, steps: Steps) -> None:
    (suspected,) = judged("npz-read-again", {"python.steps": steps(50, data_wait=0.05)})

    assert suspected.certainty is Certainty.SUSPECTED
    assert judged("npz-read-again", {"python.steps": steps(50)}) == []
    with pytest.raises(NoEvidence):
        judged("npz-read-again", {"python.steps": steps(5, data_wait=0.05)})
