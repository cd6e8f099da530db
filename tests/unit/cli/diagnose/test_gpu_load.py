"""What the host does beside a GPU that works: it costs no more than the GPU's idle time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import duckdb
import pytest

from probe_agent.wire import TargetInfo
from probe_cli.diagnose import diagnose
from probe_cli.diagnose.evidence import Evidence
from probe_cli.diagnose.finding import Certainty, Finding
from probe_cli.diagnose.gpu_load import NAME, SQL
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank

from .rules.conftest import rows_of

START = datetime(2026, 1, 1)


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    yield Finding("the training thread reads values of tensors", cost_s=0.08, share=0.8)


READS = Rule("reads", "speed", "?", "", of_each_rank(judge), (Threshold("share", 0.15, "?"),), on_host=True)


def found(utilization: float | None, *, samples: int = 20, on_device: int = 9, rule: Rule = READS) -> Sequence[Finding]:
    """What is found of a job whose thread reads values for 80 % of the time."""
    load = [{"on_device": on_device, "known": samples, "samples": samples, "utilization": utilization}]
    target = TargetInfo(
        pid=7, rank=0, local_rank=0, world_size=1, host="node", uid=0, alive=True, state="running", step=9,
        step_age_s=0.1, age_s=60.0, command=("python", "train.py"), python="3.12.3", torch="2.11.0", version="0",
        how="planned", attached_at=0.0, folder="/nowhere",
    )  # fmt: skip
    return diagnose([rule], [(target, Evidence({"reads": [], NAME: load}, {}, ()))], {}).findings


def test_where_the_gpu_is_the_limit_a_wait_for_it_costs_nothing() -> None:
    assert not found(0.99)


def test_of_a_gpu_that_idles_for_a_part_that_part_can_be_gained() -> None:
    (one,) = found(0.7)

    assert (one.share, one.cost_s) == (pytest.approx(0.3), pytest.approx(0.03))
    assert one.evidence == ("its GPU works 70 % of the time, so that no more than the rest can be gained",)


def test_of_a_gpu_that_idles_for_longer_all_of_it() -> None:
    (one,) = found(0.1)

    assert (one.share, one.evidence) == (0.8, ())


def test_where_the_load_is_not_known_it_is_possible_only() -> None:
    (one,) = found(None, samples=0)

    assert one.certainty is Certainty.POSSIBLE
    assert "not known" in one.evidence[0]


def test_a_job_on_the_cpu_and_other_rules_are_left_as_they_are() -> None:
    (on_cpu,) = found(0.99, on_device=0)
    (other,) = found(0.99, rule=Rule("reads", "memory", "?", "", of_each_rank(judge)))

    assert (on_cpu.share, other.share) == (0.8, 0.8)


@pytest.fixture
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as made:
        yield made


def test_the_load_is_that_of_the_steps(database: duckdb.DuckDBPyConnection) -> None:
    def samples(first: int, num: int, utilization: float) -> list[dict[str, Any]]:
        return [
            {"ts": START + timedelta(seconds=first + at), "pid": 7, "utilization": utilization} for at in range(num)
        ]

    steps = [{"step": at, "ts": START + timedelta(seconds=0.1 * at), "duration": 0.1} for at in range(200)]
    memory = [{"ts": START, "device": "cuda:0"}]

    (row,) = rows_of(
        database, SQL, {"python.steps": steps, "torch.memory": memory,
                        "gpu.samples": [*samples(-50, 50, 0.0), *samples(0, 30, 0.99)]},
    )  # fmt: skip
    (alone,) = rows_of(database, SQL, {"python.steps": steps})

    assert (row["on_device"], row["samples"], row["utilization"]) == (1, 19, pytest.approx(0.99))
    assert (alone["on_device"], alone["samples"], alone["steps"]) == (0, 0, 200)
