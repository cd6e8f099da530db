"""Large answers are read by another parser than small ones, and are the same."""

from __future__ import annotations

import json

import pytest

from probe_cli.client.client import LARGE, _parsed


@pytest.mark.parametrize(
    "value",
    [
        [1.7e9 + 1e-6, -0.0, 5e-324, 2**63, 2**100, None, True, {"a": [1, "é\u2028"]}],
        [float("inf"), -float("inf")],
        ["half of a pair: \ud800"],
        json.loads("[" * 400 + "]" * 400),
    ],
    ids=["values", "infinities", "surrogate", "deep"],
)
def test_the_same_is_read(value: object) -> None:
    small = json.dumps(value)
    large = json.dumps([value, "x" * LARGE])
    assert _parsed(small) == value
    assert _parsed(large.encode()) == [value, "x" * LARGE]
    assert [type(each) for each in _parsed(large)[0]] == [type(each) for each in value]  # type: ignore


@pytest.mark.parametrize("size", [1, LARGE])
def test_what_is_cut_off_is_an_error(size: int) -> None:
    with pytest.raises(ValueError, match=r"line 1 column|char"):
        _parsed('["' + "x" * size)
