"""torch.compile has broken the graph."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged, Steps

BREAK = {
    "step": 0,
    "ts": "2026-01-01",
    "event": "graph_break",
    "function": "forward",
    "file": "m.py",
    "lineno": 9,
    "reason": "print",
}


def test_each_line_is_named_with_the_reason(judged: Judged) -> None:
    (found,) = judged("graph-breaks", {"torch.compile": [BREAK, {**BREAK, "lineno": 12}]})

    assert "at 2 lines" in found.sentence
    assert found.evidence[0] == "m.py:9 in forward: print"


def test_a_whole_graph_is_fine(judged: Judged) -> None:
    assert judged("graph-breaks", {"torch.compile": [{**BREAK, "event": "compile"}]}) == []


def test_breaks_that_torch_makes_itself_under_ddp_are_no_fault(judged: Judged) -> None:
    own = "/x/site-packages/torch/nn/parallel/distributed.py"
    reason = "the function `DistributedDataParallel._inside_ddp_forward` in /x/torch/_compile.py should not be traced"
    breaks = [{**BREAK, "file": own, "lineno": 1757}, {**BREAK, "file": "/lib/contextlib.py", "reason": reason}]

    assert judged("graph-breaks", {"torch.compile": breaks}) == []
    (found,) = judged("graph-breaks", {"torch.compile": [*breaks, BREAK]})
    assert "at 1 line" in found.sentence


def test_a_job_that_compiles_nothing_has_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("graph-breaks", {})


def test_what_follows_a_break_and_is_compiled_again_is_its_cost(judged: Judged, steps: Steps) -> None:
    again = {**BREAK, "event": "recompile", "function": "torch_dynamo_resume_in_forward_at_9", "duration": 1.0}
    tables = {"torch.compile": [{**BREAK, "duration": None}, *[again] * 3], "python.steps": steps(100)}

    (found,) = judged("graph-breaks", tables)

    assert found.share == pytest.approx(0.3)
    assert found.evidence[-1] == "the code behind a break was compiled 3 times more"
    assert judged("recompiles", tables) == []
