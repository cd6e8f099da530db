"""torch.compile compiles again and again."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps


def events(num: int, kind: str = "recompile") -> list[dict[str, object]]:
    return [
        {"step": 20 + at, "ts": f"2026-01-01 00:00:{at:02}", "event": kind, "function": "forward", "file": "m.py",
         "lineno": 7, "reason": "size mismatch", "duration": 0.5}
        for at in range(num)
    ]  # fmt: skip


def test_a_function_that_is_compiled_anew_is_named_with_the_reason(judged: Judged, steps: Steps) -> None:
    (found,) = judged("recompiles", {"python.steps": steps(100), "torch.compile": events(4)})

    assert found.where == "m.py:7"
    assert "compiled 4 times more: size mismatch" in found.sentence
    assert found.share == pytest.approx(0.2)


def test_the_first_compilation_is_none(judged: Judged, steps: Steps) -> None:
    assert judged("recompiles", {"python.steps": steps(100), "torch.compile": events(4, "compile")}) == []
    assert judged("recompiles", {"python.steps": steps(100), "torch.compile": events(1)}) == []


def test_a_job_that_compiles_nothing_has_nothing_to_judge(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("recompiles", {"python.steps": steps(100)})


def test_of_a_long_reason_the_guard_is_told_and_the_rest_is_evidence(judged: Judged, steps: Steps) -> None:
    reason = "0/52: self.anneal.n == 52  # return min(self.n, 9)  # model.py:24 in phase (HINT: make it dynamic)"

    told = [{**event, "reason": reason} for event in events(4)]
    (found,) = judged("recompiles", {"torch.compile": told, "python.steps": steps(100)})

    assert found.sentence.endswith("times more: self.anneal.n == 52")
    assert found.evidence[1:] == (
        "it does not hold any more for return min(self.n, 9)  # model.py:24 in phase",
        "torch says: make it dynamic",
    )
