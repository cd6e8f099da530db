"""Tensors kept with their graphs."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import Certainty, NoEvidence
from probe_cli.diagnose.rules import graphs_kept

from .conftest import Judged
from .looking import Answers, looked

KEPT: dict[str, Any] = {
    "place": "local `history` of main() at train.py:9", "class": "list", "items": 200, "added": 5, "period": 0.4,
    "tensors": 200, "graphs": 200, "steps": 5,
}  # fmt: skip


def test_a_list_of_losses_with_graphs_is_named(judged: Judged) -> None:
    (found,) = judged("graphs-kept", {"python.containers": [KEPT], "python.steps": []})

    assert "200 tensors are kept with their autograd graphs in a list" in found.sentence
    assert "history" in found.where


def test_a_sum_of_losses_is_named_with_what_to_write_instead(judged: Judged) -> None:
    row = {**KEPT, "place": "['loss'] of local `means` of main() at train.py:9", "class": "Tensor"}
    (found,) = judged("graphs-kept", {"python.containers": [row], "python.steps": []})

    assert found.sentence == "200 tensors are kept with their autograd graphs in a sum"
    assert found.where.startswith("['loss'] of local `means`")
    assert found.try_first == "total += loss.item()"


def test_exceptions_with_the_tensors_of_their_frames_are_named_with_what_to_keep_of_them(judged: Judged) -> None:
    rows = {"python.containers": [{**KEPT, "class": "list of exceptions"}], "python.steps": []}
    (found,) = judged("graphs-kept", rows)

    assert found.sentence == "200 tensors are kept with their autograd graphs in a list of exceptions"
    assert "str(error)" in found.advice[0]
    assert found.try_first == "errors.append(str(error))"


def looks(*graphs: int, steps: int = 8) -> Answers:
    return Answers(
        *([{**KEPT, "kind": "list", "graphs": num, "grown": 0, "step": steps * at}] for at, num in enumerate(graphs))
    )


def test_a_list_that_grows_now_and_then_is_named_after_several_looks(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs_kept, "PAUSE_S", 0.0)
    suspected = judged("graphs-kept", {"python.containers": [{**KEPT, "added": 0}]})
    assert [one.certainty for one in suspected] == [Certainty.SUSPECTED]

    (found,) = looked("graphs-kept", looks(30, 30, 31, 32), suspected)
    assert found.sentence == "32 tensors are kept with their autograd graphs in a list"
    assert "2 more in" in found.evidence[0]
    assert looked("graphs-kept", looks(30, 30, 30, 30), suspected) == []  # it holds the last 30
    assert looked("graphs-kept", looks(30, 40, 22, 35), suspected) == []  # an episode's, until its update
    with pytest.raises(NoEvidence):
        looked("graphs-kept", looks(30, 31, 32, 33, steps=0), suspected)  # one long episode


def test_a_list_with_few_graphs_is_fine(judged: Judged) -> None:
    assert judged("graphs-kept", {"python.containers": [{**KEPT, "graphs": 4}]}) == []
    assert judged("graphs-kept", {"python.containers": [{**KEPT, "graphs": 4, "added": 0}]}) == []


def test_what_an_episode_keeps_until_its_update_is_fine(judged: Judged) -> None:
    assert judged("graphs-kept", {"python.containers": [{**KEPT, "steps": 0}]}) == []


def test_without_containers_nothing_is_found(judged: Judged) -> None:
    assert judged("graphs-kept", {}) == []
