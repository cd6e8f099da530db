"""What `compare` says of the hosts' clocks."""

from __future__ import annotations

from probe_cli.cluster.compare.facts import Clock
from probe_cli.commands.compare import MAX_CLOCKS, clock_lines


def test_few_hosts_have_a_line_each() -> None:
    clocks = {"node1": Clock(0.002, 0.0001, 6), "node2": Clock(-0.00003, 0.00002, 6)}

    assert list(clock_lines(clocks)) == [
        "clock of node1: 2.0 ms ahead of ours, ±100 µs",
        "clock of node2: 30 µs behind ours, ±20 µs",
    ]


def test_many_hosts_have_one_line_with_the_extremes() -> None:
    clocks = {f"node{number}": Clock(number * 1e-3, 1e-4, 6) for number in range(-20, MAX_CLOCKS)}
    clocks["node0"] = Clock(0.0, 0.5, 6)

    assert list(clock_lines(clocks)) == [
        f"clocks of {len(clocks)} hosts: from 20 ms behind ours (node-20) to {MAX_CLOCKS - 1}.0 ms ahead of ours"
        f" (node{MAX_CLOCKS - 1}), ±500 ms at most (node0)"
    ]
