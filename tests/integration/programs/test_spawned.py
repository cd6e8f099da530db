"""A program that starts its ranks by `mp.spawn`: they compute what their twins do, and each has its own rows."""

from __future__ import annotations

import json
import re

import pytest

from .conftest import ALL, LASTING, Programs

pytestmark = [pytest.mark.torch, pytest.mark.long]  # six processes that import torch


def test_spawned_ranks_compute_what_their_twins_do_and_have_rows(programs: Programs) -> None:
    alone = programs.end(*programs.start("spawned", ()))
    ran = programs.end(*programs.start("spawned", (), **{**ALL, "PROBE": "all"}))

    twins, ranks = ([json.loads(line) for line in each.out.splitlines()] for each in (alone, ran))
    assert (ran.code, re.sub(r"\d+", "N", ran.err)) == (alone.code, re.sub(r"\d+", "N", alone.err)) == (0, alone.err)
    assert [[rank[name] for name in LASTING] for rank in ranks] == [[twin[name] for name in LASTING] for twin in twins]
    assert [rank["rank"] for rank in ranks] == [0, 1]
    for rank in ranks:
        tables = programs.tables(rank["pid"])
        assert tables["probe.errors"] == []
        assert [row["step"] for row in tables["python.steps"]] == list(range(1, rank["steps"]))
        assert {(row["rank"], row["world_size"]) for row in tables["python.steps"]} == {(rank["rank"], 2)}
        seen = [float(row["loss"]) for row in tables["python.steps"]]
        assert seen == pytest.approx(rank["losses"][1:], rel=1e-6)
    assert programs.tables(ran.pid)["python.steps"] == []
