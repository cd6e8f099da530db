"""Queues into which more is put than is taken out."""

from __future__ import annotations

from typing import Any

import pytest

from probe_cli.diagnose.finding import Certainty, NoEvidence, NotApplicable
from probe_cli.diagnose.rules import queue_grows

from .conftest import Judged
from .looking import Answers, looked

HOLDER = "local `inbox` of main() at serve.py:45"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_grows, "PAUSE_S", 0.0)


def row(items: int, added: int = 20, name: str = "queue", kind: str = "deque") -> dict[str, Any]:
    return {"place": f"attribute `{name}` of {HOLDER}", "class": kind, "items": items, "added": added, "period": 0.4}


@pytest.mark.parametrize("name", ["queue", "_queue", "_buffer"])
def test_a_queue_that_is_longer_each_time_is_named(judged: Judged, name: str) -> None:
    suspected = judged("queue-grows", {"python.containers": [row(4_000, name=name)]})
    assert [one.certainty for one in suspected] == [Certainty.SUSPECTED]

    (found,) = looked("queue-grows", Answers([row(4_000, name=name)], [row(4_200, name=name)]), suspected)

    assert found.sentence == "a queue grows, by 50 items a second: 4,200 items wait in it"
    assert found.where == HOLDER
    assert found.evidence == (f"4,000 items at first, 4,200 some seconds later: {HOLDER}",)


@pytest.mark.parametrize("later", [row(3_000), row(4_010), row(4_200, added=0)])
def test_one_that_gets_shorter_or_stays_so_long_is_fine(judged: Judged, later: dict[str, Any]) -> None:
    suspected = judged("queue-grows", {"python.containers": [row(4_000)]})

    assert looked("queue-grows", Answers([row(4_000)], [later]), suspected) == []


@pytest.mark.parametrize("first", [row(4_000, added=0), row(50)])
def test_a_queue_that_is_short_or_does_not_grow_is_not_looked_at(judged: Judged, first: dict[str, Any]) -> None:
    assert judged("queue-grows", {"python.containers": [first]}) == []


def test_other_containers_are_no_queues(judged: Judged) -> None:
    for other in (row(4_000, kind="list"), row(4_000, name="history")):
        with pytest.raises(NotApplicable):
            judged("queue-grows", {"python.containers": [other]})


def test_a_queue_that_is_gone_at_the_second_look_is_no_evidence(judged: Judged) -> None:
    suspected = judged("queue-grows", {"python.containers": [row(4_000)]})

    with pytest.raises(NoEvidence):
        looked("queue-grows", Answers([row(4_000)], []), suspected)
