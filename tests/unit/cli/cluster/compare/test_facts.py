"""Facts of several ranks on one clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probe_cli.cluster.compare.facts import standstill_s

from .made import job


@pytest.mark.parametrize(("later", "is_long"), [(1.0, False), (9.0, False), (45.0, True)])
def test_no_step_for_long_is_a_standstill(later: float, is_long: bool) -> None:
    facts = job(4, 50, hosts=2, clocks={"node1": 3600.0})
    end = float(facts[0].steps["ended"].max())

    stands_s = standstill_s(facts, end + later)

    assert (stands_s == pytest.approx(later, abs=0.01)) if is_long else stands_s is None
    assert standstill_s([replace(fact, steps={}) for fact in facts], end) is None


def test_a_job_with_long_steps_now_and_then_stands_still_only_after_longer_ones() -> None:
    facts = job(4, 50, lambda rank, step: {"other": 30.0} if step == 20 else {})
    end = float(facts[0].steps["ended"].max())

    assert standstill_s(facts, end + 45.0) is None
    assert standstill_s(facts, end + 75.0) is not None
