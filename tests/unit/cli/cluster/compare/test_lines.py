"""The line of a slow rank that takes longer there than on a peer, found from samples of both."""

from __future__ import annotations

import numpy as np
import pytest

from probe_cli.cluster.compare.evidence import Place, slow_line

NUM_SAMPLES = 150
#: Parts of the time that lines of a step take on every rank.
PARTS = {("forward", "net.py:20"): 0.3, ("forward", "net.py:30"): 0.3, ("main", "train.py:9"): 0.3}
REST: Place = ("step", "train.py:12")


def sampled(parts: dict[Place, float], seed: int) -> dict[Place, int]:
    counts = np.random.default_rng(seed).multinomial(NUM_SAMPLES, [*parts.values(), 1 - sum(parts.values())])
    return {place: int(count) for place, count in zip([*parts, REST], counts, strict=True) if count}


@pytest.mark.parametrize("seed", range(20))
def test_a_line_that_takes_longer_is_named(seed: int) -> None:
    saves: Place = ("torch.save", "train.py:40")
    slow = {place: 0.8 * part for place, part in PARTS.items()}

    assert slow_line(sampled({**slow, saves: 0.2}, seed), sampled(PARTS, seed + 100)) == saves


def test_a_line_that_is_ahead_by_chance_is_not_named() -> None:
    named = [slow_line(sampled(PARTS, seed), sampled(PARTS, seed + 1000)) for seed in range(200)]

    assert sum(line is not None for line in named) <= 10


def test_without_samples_of_both_no_line_is_named() -> None:
    assert slow_line({}, {REST: 20}) is None
    assert slow_line({REST: 20}, {}) is None
