"""Each `--by`: its verdict, its silence, and its answer without data."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import datetime

import duckdb
import numpy as np
import pytest

from probe_agent.recorder.samplers.process import Samples
from probe_agent.sql.tables.declarations import known_tables
from probe_cli.cluster.compare.by import WAYS
from probe_cli.cluster.compare.facts import Facts, Memory, ModuleTime, Trait, Who, are_late, with_recent
from probe_cli.cluster.compare.questions import FACTS, Extent
from probe_cli.text import mebibytes, ranks_text, seconds, sum_up

from .made import CALL, columns, job, rows_between


def ranks(num: int, **told: object) -> list[Facts]:
    return [replace(Facts(Who(rank, "node0", rank)), **told) for rank in range(num)]


@pytest.mark.parametrize("name", sorted(WAYS))
def test_every_way_says_when_it_has_no_facts(name: str) -> None:
    way = WAYS[name]

    comparison = way.compare(ranks(4), 100)

    assert set(way.needs) <= set(FACTS)
    assert comparison.verdict.state == "not enough data"
    assert comparison.verdict.sentence.startswith("not enough data: ")
    assert len(comparison.columns) == len(comparison.types)


@pytest.mark.parametrize("name", ["phase", "collective"])
def test_rows_have_the_columns_and_one_each_rank(name: str) -> None:
    facts = job(4, 100, lambda rank, step: {"data_wait": 0.030} if rank == 2 else {})

    comparison = WAYS[name].compare(facts, 100)

    assert comparison.verdict.ranks == (2,)
    at = comparison.columns.index("rank")
    assert sorted(row[at] for row in comparison.rows) == [0, 1, 2, 3]
    assert {len(row) for row in comparison.rows} == {len(comparison.columns)}


def test_by_phase_says_where_each_is_longer() -> None:
    facts = job(4, 100, lambda rank, step: {"other": 0.030} if rank == 2 else {})

    comparison = WAYS["phase"].compare(facts, 100)
    rows = {row[0]: dict(zip(comparison.columns, row, strict=True)) for row in comparison.rows}

    assert (rows[2]["longer"], rows[2]["by"]) == ("other", pytest.approx(0.030, abs=0.002))
    assert all(rows[rank]["backward"] == pytest.approx(0.020, abs=0.003) for rank in range(4))
    assert comparison.verdict.where == "other"


def test_by_collective_shows_who_comes_last_and_who_waits() -> None:
    facts = job(4, 100, lambda rank, step: {"forward": 0.030} if rank == 1 else {})

    comparison = WAYS["collective"].compare(facts, 100)

    first, *others = (dict(zip(comparison.columns, row, strict=True)) for row in comparison.rows)
    assert comparison.verdict.ranks == (1,)
    assert (first["group"], first["op"], first["rank"], first["last"]) == ("0", "all_reduce", 1, 1.0)
    assert first["behind"] == pytest.approx(0.030, abs=0.003)
    assert all(row["waits"] == pytest.approx(0.030, abs=0.003) for row in others)


def module_times(**taken: float) -> tuple[ModuleTime, ...]:
    return tuple(
        ModuleTime(name.replace("_", "."), "forward", 10, host, host * 0.9, host * 0.05, None, None, None)
        for name, host in taken.items()
    )


def test_by_module_names_the_module_of_the_rank() -> None:
    facts = [replace(fact, modules=module_times(Net=0.001, Net_a=0.002, Net_b=0.003)) for fact in job(4, 100)]
    facts[1] = replace(facts[1], modules=module_times(Net=0.001, Net_a=0.002, Net_b=0.030))

    comparison = WAYS["module"].compare(facts, 100)

    assert (comparison.verdict.ranks, comparison.verdict.where) == ((1,), "Net.b forward")
    assert "Net.b forward takes 30 ms a step, the median rank's 3.0 ms" in comparison.verdict.sentence


def test_by_module_on_a_device_names_the_innermost_that_explains_it() -> None:
    def times(of_b: float) -> tuple[ModuleTime, ...]:
        values = {"Net": 0.010 + of_b, "Net.a": 0.010, "Net.b": of_b, "Net.b.inner": of_b}
        return tuple(
            ModuleTime(name, "forward", 10, 1e-4, 1e-4, 1e-5, device, device * 0.95, device * 0.01)
            for name, device in values.items()
        )

    facts = [replace(fact, modules=times(0.030 if fact.who.rank == 3 else 0.005)) for fact in job(4, 100)]

    comparison = WAYS["module"].compare(facts, 100)

    assert (comparison.verdict.ranks, comparison.verdict.where) == ((3,), "Net.b.inner forward")


def test_by_module_a_backward_that_may_contain_the_wait_names_no_rank() -> None:
    facts = [replace(fact, modules=module_times(Net=0.001)) for fact in job(4, 100)]
    waiting = replace(facts[1].modules[0], stage="backward", host=0.050, host_low=0.049)
    facts = [
        replace(fact, modules=(*fact.modules, waiting if fact.who.rank == 1 else replace(waiting, host=0.001)))
        for fact in facts
    ]

    assert WAYS["module"].compare(facts, 100).verdict.state == "nobody"


def memory(rss: float, grows: float = 0.0) -> tuple[Memory, ...]:
    return (Memory("rss", rss, rss, rss + grows, 100), Memory("allocated", rss, rss, rss + grows, 100))


def test_by_memory_names_who_uses_more_and_shows_growth() -> None:
    facts = [replace(fact, memory=memory(1000.0)) for fact in ranks(4)]
    facts[2] = replace(facts[2], memory=memory(1500.0, grows=70.0))

    comparison = WAYS["memory"].compare(facts, 100)

    assert comparison.verdict.ranks == (2,)
    assert comparison.verdict.sentence == (
        "rank 2 uses more than the others: 1.5 GiB of resident memory, the median of the others 1000 MiB"
    )
    assert {row[0] for row in comparison.rows} == {"rss"}  # allocated says the same on a CPU
    assert next(row for row in comparison.rows if row[1] == 2)[-1] == 70.0


def test_by_memory_a_few_mib_more_are_nothing() -> None:
    facts = [replace(fact, memory=memory(300.0 + 20 * fact.who.rank)) for fact in ranks(4)]

    verdict = WAYS["memory"].compare(facts, 100).verdict

    assert verdict.state == "nobody"
    assert "memory of 4 ranks compared over 100 steps" in verdict.sentence


def traits(**values: str) -> tuple[Trait, ...]:
    return tuple(Trait("variable", name, value) for name, value in values.items())


def test_by_env_shows_what_differs_and_on_whom() -> None:
    facts = [replace(fact, traits=traits(NCCL_DEBUG="WARN", OMP_NUM_THREADS="8")) for fact in ranks(8)]
    facts[5] = replace(facts[5], traits=traits(NCCL_DEBUG="INFO", OMP_NUM_THREADS="8", NCCL_ALGO="Tree"))

    comparison = WAYS["env"].compare(facts, 100)

    assert comparison.rows == [
        ["variable", "NCCL_ALGO", None, "0-4,6-7", 7],
        ["variable", "NCCL_ALGO", "Tree", "5", 1],
        ["variable", "NCCL_DEBUG", "WARN", "0-4,6-7", 7],
        ["variable", "NCCL_DEBUG", "INFO", "5", 1],
    ]
    assert comparison.verdict.ranks == (5,)
    assert comparison.verdict.sentence.startswith("2 of 3 differ: variable NCCL_ALGO: rank 5 Tree; ranks 0-4,6-7 with")


def test_by_env_equal_ranks_and_what_always_differs_are_nothing() -> None:
    facts = [
        replace(fact, traits=traits(NCCL_DEBUG="WARN", CUDA_VISIBLE_DEVICES=str(fact.who.rank))) for fact in ranks(4)
    ]

    verdict = WAYS["env"].compare(facts, 100).verdict

    assert verdict.state == "nobody"
    assert verdict.sentence == "nothing differs: 2 settings, versions, variables and code hashes of 4 ranks compared"


def test_collectives_of_a_moment_ago_get_the_step_they_were_called_in() -> None:
    (fact, _) = job(2, 20)
    newest = float(fact.steps["ended"].max())
    unfinished = columns([{**CALL, "step": -1, "seq": 99, "start": newest + 0.01}])
    recent = {name: np.concatenate([values, unfinished[name]]) for name, values in fact.calls.items()}
    recent["step"] = np.full(len(recent["step"]), -1)

    found = with_recent(replace(fact, calls=rows_between(fact.calls, 0, 5), recent=recent))

    assert found.calls["seq"].tolist() == fact.calls["seq"].tolist()
    assert found.calls["step"].tolist() == fact.calls["step"].tolist()


def test_flight_recorder_is_asked_only_where_its_rows_are_behind() -> None:
    (fact, _) = job(2, 100)
    old = rows_between(fact.calls, 0, 50)

    assert not are_late({"steps": fact.steps, "calls": fact.calls})
    assert are_late({"steps": fact.steps, "calls": old})
    assert are_late({"steps": fact.steps, "calls": {}})
    assert not are_late({"steps": {}, "calls": {}})
    assert not are_late({"steps": fact.steps, "calls": {**old, "by_cpp": np.zeros(50, dtype=bool)}})


def test_with_many_ranks_fewer_rows_of_each_are_requested() -> None:
    few, many = Extent(200, 4), Extent(200, 2048)

    assert (few.steps, few.calls) == (5_000, 40_000)
    assert 200 < many.steps < 400
    assert many.steps * 2048 < 1_000_000
    assert many.calls * 2048 < 2_000_000
    assert f"LIMIT {many.calls}" in FACTS["calls"].sql(many)


@pytest.mark.parametrize(
    ("text", "ranks"), [("0-3", (0, 1, 2, 3)), ("0-6:2", (0, 2, 4, 6)), ("0, 3, 5", (0, 3, 5)), ("0, 3, …", ())]
)
def test_ranks_of_a_group_are_read_as_they_are_written(text: str, ranks: tuple[int, ...]) -> None:
    (group,) = FACTS["groups"].read([["7", "mesh_tp", text]]).values()

    assert (group.desc, group.ranks) == ("mesh_tp", ranks)


def test_columns_of_different_lengths_are_no_answer() -> None:
    rows = [[[1, 2]] + [[0.5, 0.5]] * 11]

    assert FACTS["steps"].read(rows)["number"].tolist() == [1, 2]
    assert np.isnan(FACTS["steps"].read([[[1]] + [[None]] * 9 + [[False]] * 2])["duration"]).all()
    with pytest.raises(ValueError, match="not of one length"):
        FACTS["steps"].read([[[1]] + [[0.5, 0.5]] * 11])


def test_times_and_durations_come_as_they_were_recorded() -> None:
    with duckdb.connect() as database:
        database.execute("CREATE SCHEMA python; CREATE TABLE python.gc (ts TIMESTAMP, duration DOUBLE)")
        for second, duration in enumerate((0.0123456789, None, math.nan, math.inf, 1e300, 86_400.000000001)):
            database.execute(
                "INSERT INTO python.gc VALUES (?, ?)", [datetime(2026, 11, 25, 3, 4, second, 678901), duration]
            )
        rows = database.sql(FACTS["pauses"].sql(Extent(100))).fetchall()

    told = FACTS["pauses"].read(json.loads(json.dumps(rows)))

    assert told["ts"].tolist() == [1_795_575_840.678901 + second for second in range(6)]
    assert told["duration"][[0, 5]].tolist() == [0.012345679, 86_400.000000001]
    assert np.isnan(told["duration"][1:5]).all()


@pytest.mark.parametrize(("ago_s", "newest"), [(0.0, 499), (205.0, 478), (1e6, 499)])
def test_steps_in_which_the_host_answered_us_are_left_out_if_there_are_others(ago_s: float, newest: int) -> None:
    extent = Extent(100, ago_s=ago_s)
    with duckdb.connect() as database:
        database.execute("SET TimeZone='UTC'; CREATE SCHEMA python")
        for name in ("steps", "collectives"):
            told = ", ".join(f'"{one.name}" {one.sql_type}' for one in known_tables([])[f"python.{name}"])
            database.execute(f"CREATE TABLE python.{name} ({told})")
            database.execute(
                f"INSERT INTO python.{name} (step, ts) SELECT n, now()::TIMESTAMP - to_seconds(10.0 * (499 - n))"
                " FROM range(500) AS t(n)"
            )
        database.execute("UPDATE python.collectives SET start = ts, state = 'completed', seen_by = 'python'")

        ((steps,),) = database.sql(f'SELECT "number" FROM ({FACTS["steps"].sql(extent)})').fetchall()
        ((calls,),) = database.sql(f"SELECT step FROM ({FACTS['calls'].sql(extent)})").fetchall()

    assert (max(steps), max(calls)) == (newest, newest)
    assert {min(steps), min(calls)} == {newest - extent.num_steps - 99 if ago_s < 1e6 else 0}


@pytest.mark.parametrize("values", [(2, 2, 2), (None, None, None), (2, None, 2), (None, 2, 2)])
def test_a_value_that_all_rows_have_travels_once_and_is_read_for_each(values: tuple[int | None, ...]) -> None:
    with duckdb.connect() as database:
        described = ", ".join(f'"{column.name}" {column.sql_type}' for column in Samples.columns)
        database.execute(f"CREATE SCHEMA process; CREATE TABLE process.samples ({described})")
        for second, nice in enumerate(values):
            database.execute(
                "INSERT INTO process.samples (ts, nice) VALUES (?, ?)", [datetime(2026, 11, 25, 3, 4, second), nice]
            )
        rows = database.sql(FACTS["samples"].sql(Extent(100))).fetchall()

    told = FACTS["samples"].read(rows)

    assert len(rows[0][list(told).index("nice")]) == (3 if len(set(values)) > 1 else 1)
    assert [None if math.isnan(value) else value for value in told["nice"].tolist()] == list(values)


def test_words() -> None:
    assert [seconds(value) for value in (0.0, 8e-5, 0.0042, 0.21, 1.3, 75.0)] == [
        "0 ms",
        "80 µs",
        "4.2 ms",
        "210 ms",
        "1.3 s",
        "75 s",
    ]
    sizes = [mebibytes(value) for value in (0.4123, 8.25, 812.4, 12_083.0)]
    assert sizes == ["0.41 MiB", "8.2 MiB", "812 MiB", "11.8 GiB"]
    assert sum_up(list("abcdef"), 4) == "a; b; c; d; and 2 more"
    assert ranks_text([5, 3, 4, 9, 3]) == "3-5,9"
    assert ranks_text([]) == ""
    many = [*range(0, 3000, 2), 3001, 3002]
    assert ranks_text(many, most=3) == "0,2,4 and 1,499 more"
    assert ranks_text(many, most=None) == ",".join([*(str(rank) for rank in range(0, 3000, 2)), "3001-3002"])
