"""Ranks run with different versions, settings or code."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged


def env(version: str) -> dict[str, list[dict[str, object]]]:
    return {"process.env": [{"kind": "version", "name": "torch", "value": version}]}


def test_the_odd_rank_is_named(judged: Judged) -> None:
    (found,) = judged("ranks-differ", env("2.13"), env("2.13"), env("2.12"))

    assert (found.where, found.ranks) == ("torch", (2,))


def test_equal_ranks_are_fine(judged: Judged) -> None:
    assert judged("ranks-differ", env("2.13"), env("2.13")) == []


def test_one_rank_has_nothing_to_differ_from_and_silence_is_no_evidence(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("ranks-differ", env("2.13"))
    with pytest.raises(NoEvidence):
        judged("ranks-differ", env("2.13"), {})
