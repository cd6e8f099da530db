"""Arrays of an .npz file that are read for each sample."""

from __future__ import annotations

from dataclasses import replace

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


@pytest.mark.parametrize(("num", "is_told"), [(6, True), (3, False)])
def test_workers_that_read_them_are_told_with_what_the_step_waits(num: int, is_told: bool) -> None:
    waits = Stack((Frame("next", "/job/train.py", 9, 1, "python", "    for batch in loader:"),), state="sleeping")
    reads = (UNPACKS, Frame("NpzFile.__getitem__", LIBRARY.format("_npyio_impl"), 7, 0, "python", None), OWN)
    known = {
        "stacks of 0": [waits] * 12,
        "more stacks of 0": [],
        "worker stacks of 0": [reads] * num + [(OWN,)] * (8 - num),
    }

    found = looked("npz-read-again", Told(**known), [replace(SUSPECTED, share=0.6)])

    assert [one.where for one in found] == ["__getitem__ (data.py:40)"] * is_told
    for one in found:
        assert "75 % of their time, and the step waits 60 % of its own for data" in one.sentence
        assert one.cost_s == pytest.approx(0.06)


def test_another_line_of_the_data_set_is_fine() -> None:
    known = {"stacks of 0": [Stack((OWN,))] * 12, "more stacks of 0": [], "worker stacks of 0": []}
    told = Told(**known)

    assert looked("npz-read-again", told, [SUSPECTED]) == []


def test_only_steps_with_time_outside_of_the_model_are_suspected(judged: Judged, steps: Steps) -> None:
    (suspected,) = judged("npz-read-again", {"python.steps": steps(50, data_wait=0.05)})

    assert suspected.certainty is Certainty.SUSPECTED
    assert judged("npz-read-again", {"python.steps": steps(50)}) == []
    with pytest.raises(NoEvidence):
        judged("npz-read-again", {"python.steps": steps(5, data_wait=0.05)})
