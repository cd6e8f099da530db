"""Differences beyond noise, and the clocks of the hosts."""

from __future__ import annotations

import random
from statistics import median

import pytest

from probe_cli.cluster.compare.facts import Clock, Facts, Trip, Who, clock_of, one_clock_a_host, uncertainty_between
from probe_cli.cluster.compare.outliers import mad, median_of_others


def test_the_median_of_the_others_is_that_of_all_but_one() -> None:
    chance = random.Random(1)
    for _ in range(200):
        values = {key: chance.choice([1.0, 2.0, chance.random()]) for key in range(chance.randint(2, 9))}

        found = median_of_others(values)

        assert found == {key: median(v for other, v in values.items() if other != key) for key in values}


def test_mad_is_not_moved_by_one_that_is_far_off() -> None:
    assert mad([1.0, 1.1, 0.9, 1.0, 100.0]) == pytest.approx(0.1)
    assert mad([]) == 0.0


@pytest.mark.parametrize("there", [0.001, 0.080])
def test_the_clock_is_right_to_within_the_uncertainty_whatever_way_the_delay_goes(there: float) -> None:
    trips = [
        Trip(sent, sent + there + 7.5, sent + there + 7.5 + 0.5, sent + there + 0.5 + 0.010) for sent in (1.0, 2.0)
    ]

    clock = clock_of(trips)

    assert clock is not None
    assert clock.uncertainty == pytest.approx((there + 0.010) / 2)
    assert abs(clock.offset - 7.5) <= clock.uncertainty + 1e-9
    assert clock.num_trips == 2


def test_the_shortest_trip_is_believed() -> None:
    clock = clock_of([Trip(0.0, 5.09, 5.09, 0.1), Trip(1.0, 6.001, 6.001, 1.002), Trip(2.0, 7.05, 7.05, 2.3)])

    assert clock == Clock(pytest.approx(5.0), pytest.approx(0.001), 3)


def test_no_trip_is_no_clock() -> None:
    assert clock_of([]) is None


def test_ranks_of_a_host_share_its_best_clock_and_hosts_add_up_what_they_are_unsure_of() -> None:
    facts = [
        Facts(Who(0, "a", 1), clock=Clock(1.0, 0.5)),
        Facts(Who(1, "a", 2), clock=Clock(1.2, 0.1)),
        Facts(Who(2, "b", 3), clock=Clock(-4.0, 0.3)),
        Facts(Who(3, "b", 4)),
    ]

    found = one_clock_a_host(facts)

    assert [fact.clock and fact.clock.offset for fact in found] == [1.2, 1.2, -4.0, -4.0]
    assert uncertainty_between(found) == pytest.approx(0.4)
    assert uncertainty_between(found[:2]) == 0.0
    assert uncertainty_between([*found, Facts(Who(4, "c", 5))]) is None
