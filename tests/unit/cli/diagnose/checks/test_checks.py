"""What each check says of good rows, of bad rows, and of none."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from diagnose.test_judge import TARGET
from probe_cli.diagnose import Diagnosis, Evidence, rules
from probe_cli.diagnose.check import Check, Level, Line, checked
from probe_cli.diagnose.checks import checks
from probe_cli.diagnose.finding import Certainty, Finding

from .conftest import Checked, env

CORES, THREADS = "cpus the main thread may use", "torch.get_num_threads()"
VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "cuda of torch": "12.8", "nvidia driver": "570.158.01"}
MEMORY = {"cgroup": "/job", "cgroup_page_cache": 0.0, "host_available": 9e5, "host_total": 1e6}
NOW = datetime.now(timezone.utc).replace(tzinfo=None)
LOG = {"ts": NOW - timedelta(days=9), "kind": "log", "meaning": "reaches back to here", "code": None}
DISK = {"mount": "/ckpt", "kind": "nfs4", "is_cwd": False, "num_open": 1, "is_read_only": False, "free": 1e6}
STATE = [{"kind": "parameters", "memory": 4000.0}, {"kind": "optimizer state", "memory": 8000.0}]
LOADER = {"loader": "DataLoader", "place": "loader", "dataset": "D", "batch_size": 8, "num_workers": 2,
          "pin_memory": True, "persistent_workers": True, "sampler": "DistributedSampler"}  # fmt: skip
MODEL = {"module": "GPT", "depth": 0, "trainable": 5, "dtype": "torch.float32", "device": "cuda:0"}
GROUP = {"scope": "/job", "ts": NOW, "throttled": 0.0, "cpu_limit": 8.0, "oom_kills": 0.0}

#: check, tables of each rank, level of the worst line, words in it
SAID: list[tuple[str, list[dict[str, Any]], Level, str]] = [
    ("versions", [{"process.env": env("version", **VERSIONS)}], Level.OK, "torch 2.13.0, cuda of torch 12.8"),
    (
        "versions",
        [{"process.env": env("version", torch="2", **{"cuda of torch": "12.8"})}],
        Level.WARN,
        "no NVIDIA driver",
    ),
    ("versions", [{}], Level.UNKNOWN, "has not told"),
    ("seeds", [{"process.env": env("seed", **{"torch.initial_seed()": 1337})}], Level.OK, "1337"),
    ("seeds", [{"process.env": env("seed", **{"torch.initial_seed()": 7})}] * 2, Level.OK, "7 on all ranks"),
    ("seeds", [{"process.env": env("seed", **{"torch.initial_seed()": 1 << 60})}], Level.WARN, "was not called"),
    ("seeds", [{}], Level.UNKNOWN, "has not told"),
    ("threads", [{"process.env": env("setting", **{THREADS: 4, CORES: 8})}] * 2, Level.OK, "8 cores, 8 for"),
    ("threads", [{"process.env": env("setting", **{THREADS: 8, CORES: 8})}] * 2, Level.WARN, "8 cores, 16 for"),
    ("threads", [{}], Level.UNKNOWN, "has not told"),
    ("disk", [{"host.disks": [DISK], "torch.tensors": STATE}], Level.OK, "976.6 GiB left on /ckpt (nfs4), a rank's"),
    ("disk", [{"host.disks": [{**DISK, "free": 20_000.0}], "torch.tensors": STATE}], Level.BAD, "/ckpt"),
    ("disk", [{"host.disks": [{**DISK, "free": 50_000.0}], "torch.tensors": STATE}], Level.WARN, "room for 4"),
    ("disk", [{"host.disks": [{**DISK, "quota_used": 90.0, "quota_limit": 99.0}]}], Level.WARN, "9 MiB of the quota"),
    ("disk", [{"host.disks": [{**DISK, "inodes_free": 3.0}]}], Level.BAD, "3 inodes"),
    ("disk", [{"host.disks": [{**DISK, "is_read_only": True, "argument": "/ckpt/a"}]}], Level.WARN, "read-only"),
    ("disk", [{"host.disks": [{**DISK, "kind": "tmpfs"}]}], Level.UNKNOWN, "no mount"),
    ("kernel-log", [{"host.kernel_log": [LOG]}], Level.OK, "no error"),
    (
        "kernel-log",
        [{"host.kernel_log": [LOG, {**LOG, "kind": "xid", "ts": NOW - timedelta(days=3)}]}],
        Level.OK,
        "no error",
    ),
    (
        "kernel-log",
        [{"host.kernel_log": [LOG, {**LOG, "ts": NOW, "kind": "xid", "code": 79}]}],
        Level.BAD,
        "xid 79 on node1, once",
    ),
    ("kernel-log", [{"host.kernel_log": [LOG, *[{**LOG, "ts": NOW, "kind": "oom_kill"}] * 2]}], Level.WARN, "2 times"),
    ("kernel-log", [{}], Level.UNKNOWN, "cannot be read"),
    ("limits", [{"host.pressure": [GROUP], "process.memory": [MEMORY]}], Level.OK, "8 cores, no memory limit"),
    (
        "limits",
        [{"host.pressure": [{**GROUP, "throttled": 0.3}], "process.memory": [MEMORY]}],
        Level.BAD,
        "30 % of the periods",
    ),
    (
        "limits",
        [{"host.pressure": [{**GROUP, "pids_used": 95.0, "pids_limit": 100.0}], "process.memory": [MEMORY]}],
        Level.BAD,
        "95 of 100",
    ),
    ("limits", [{"process.memory": [{**MEMORY, "cgroup_used": 990.0, "cgroup_limit": 1000.0}]}], Level.BAD, "99 %"),
    (
        "limits",
        [{"process.memory": [{**MEMORY, "cgroup_used": 990.0, "cgroup_limit": 1000.0, "cgroup_page_cache": 500.0}]}],
        Level.OK,
        "490 MiB of 1000 MiB",
    ),
    ("limits", [{"process.memory": [{**MEMORY, "host_available": 9e4}]}], Level.WARN, "are left"),
    ("limits", [{}], Level.UNKNOWN, "tells no limits"),
    (
        "shared-memory",
        [{"process.memory": [{"shm_used": 9.0, "shm_size": 9000.0, "num_workers": 4}]}],
        Level.OK,
        "9 MiB of",
    ),
    (
        "shared-memory",
        [{"process.memory": [{"shm_used": 9.0, "shm_size": 64.0, "num_workers": 4}]}],
        Level.BAD,
        "64 MiB",
    ),
    (
        "shared-memory",
        [{"process.memory": [{"shm_used": 9.0, "shm_size": 64.0, "num_workers": 0}]}],
        Level.WARN,
        "64 MiB",
    ),
    ("shared-memory", [{}], Level.UNKNOWN, "no /dev/shm"),
    ("precision", [{"torch.modules": [{**MODEL, "dtype": "torch.bfloat16"}]}], Level.OK, "GPT: bfloat16 on cuda:0"),
    (
        "precision",
        [
            {
                "torch.modules": [MODEL],
                "process.env": env("setting", **{"torch.get_float32_matmul_precision()": "highest"}),
            }
        ],
        Level.WARN,
        "full float32",
    ),
    (
        "precision",
        [{"torch.modules": [MODEL], "process.env": env("setting", **{"torch.get_float32_matmul_precision()": "high"})}],
        Level.OK,
        "float32",
    ),
    ("precision", [{}], Level.UNKNOWN, "no model"),
    ("data-loader", [{"torch.dataloaders": [LOADER]}], Level.OK, "num_workers=2, pin_memory"),
    ("data-loader", [{"torch.dataloaders": [{**LOADER, "num_workers": 0}]}], Level.WARN, "on the training thread"),
    (
        "data-loader",
        [{"torch.dataloaders": [LOADER], "process.env": env("setting", **{CORES: 3})}] * 2,
        Level.WARN,
        "2 workers on each of 2 ranks share 3",
    ),
    (
        "data-loader",
        [{"torch.dataloaders": [{**LOADER, "sampler": "RandomSampler"}]}] * 2,
        Level.WARN,
        "all of the data",
    ),
    (
        "data-loader",
        [{"torch.dataloaders": [{**LOADER, "pin_memory": False}], "torch.memory": [{"step": 1}]}],
        Level.WARN,
        "does not pin",
    ),
    ("data-loader", [{"python.steps": [{"step": 1}]}], Level.NONE, "no torch DataLoader"),
    ("data-loader", [{}], Level.UNKNOWN, "no step has ended"),
    ("compile", [{}], Level.OK, "has compiled nothing"),
    (
        "compile",
        [{"torch.compile": [{"event": "compile", "function": "f", "duration": 2.0}]}],
        Level.OK,
        "compilations: 1, functions: 1, 2.0 s",
    ),
    ("communication", [{}], Level.NONE, "one rank"),
    ("communication", [{"torch.process_groups": [{"backend": "nccl"}]}] * 2, Level.OK, "nccl, time limit not known"),
    (
        "communication",
        [{"torch.process_groups": [{"backend": "nccl"}], "torch.flight_recorder": [{"timeout": 600.0}]}] * 2,
        Level.OK,
        "nccl, time limit 600 s",
    ),
    (
        "communication",
        [{"torch.process_groups": [{"backend": "nccl"}], "torch.flight_recorder": [{"timeout": 9.0}]}] * 2,
        Level.WARN,
        "fail after 9.0 s",
    ),
    (
        "communication",
        [{"torch.process_groups": [{"backend": "nccl"}], "process.env": env("variable", TORCH_FR_BUFFER_SIZE=0)}] * 2,
        Level.WARN,
        "no Flight Recorder",
    ),
    (
        "communication",
        [{"torch.process_groups": [{"backend": "gloo"}], "torch.memory": [{"step": 1}]}] * 2,
        Level.WARN,
        "run on gloo",
    ),
    ("communication", [{}] * 2, Level.UNKNOWN, "no rank has told"),
]


@pytest.mark.parametrize(("name", "ranks", "level", "words"), SAID)
def test_a_check_says(name: str, ranks: list[dict[str, Any]], level: Level, words: str, lines: Checked) -> None:
    found = lines(name, *ranks)

    worst = min(found, key=lambda line: list(Level).index(line.level))
    assert worst.level is level, found
    assert words in worst.sentence
    assert bool(worst.remedy) == (level in (Level.BAD, Level.WARN))
    if level is not Level.OK:
        assert Level.OK not in [line.level for line in found]


@pytest.mark.parametrize("name", [name for name, check in checks().items() if check.read is not None])
def test_a_check_that_reads_is_tried_on_good_rows_and_without_any(name: str) -> None:
    levels = {level for tried, _, level, _ in SAID if tried == name}

    assert Level.OK in levels
    assert levels & {Level.UNKNOWN, Level.NONE} or name == "compile"


@pytest.mark.parametrize("check", checks().values(), ids=list(checks()))
def test_a_check_names_rules_that_exist_and_asks_a_question(check: Check) -> None:
    assert set(check.rules) <= set(rules())
    assert check.question.endswith("?")
    assert check.read is not None or check.fine


def model(diagnosis: Diagnosis) -> list[Line]:
    return checked([checks()["model"]], [(TARGET, Evidence({}, {}, ()))], diagnosis)


def test_what_a_rule_finds_is_a_line_and_the_check_is_not_ok() -> None:
    finding = Finding(
        "it is in evaluation mode", Certainty.CERTAIN, ranks=(1,), advice=("call train()",), rule="model-in-eval-mode"
    )

    (line,) = model(Diagnosis((finding,), {}, {}, ("learning-rate-zero",)))

    assert (line.level, line.remedy, line.ranks) == (Level.BAD, "call train()", (1,))


def test_a_rule_below_another_finding_is_a_line_too() -> None:
    below = Finding("below", rule="learning-rate-zero")
    above = Finding("above", rule="loss-rises", explains=(below,))

    assert [line.sentence for line in model(Diagnosis((above,), {}, {}, ()))] == ["below"]


def test_a_check_is_ok_if_its_rules_have_judged_and_unknown_where_one_could_not() -> None:
    silent = model(Diagnosis((), {}, {"learning-rate-zero": "no"}, ("model-in-eval-mode",)))
    unjudged = model(Diagnosis((), {"learning-rate-zero": "no steps"}, {"model-in-eval-mode": "no"}, ()))
    neither = model(Diagnosis((), {}, {"model-in-eval-mode": "no model"}, ()))

    assert [line.level for line in silent] == [Level.OK]
    assert [(line.level, line.sentence) for line in unjudged] == [(Level.UNKNOWN, "learning-rate-zero: no steps")]
    assert [(line.level, line.sentence) for line in neither] == [(Level.NONE, "no model")]


def test_a_rank_that_did_not_answer_keeps_the_check_from_being_ok(lines: Checked) -> None:
    check = checks()["seeds"]
    key = check.question_asked.name
    rows = [{"kind": "seed", "name": "torch.initial_seed()", "value": "1"}]
    told = [(TARGET, Evidence({key: rows}, {}, ())), (TARGET, Evidence({}, {key: "it did not answer"}, ()))]

    found = checked([check], told, Diagnosis((), {}, {}, ()))

    assert [(line.level, line.sentence) for line in found] == [(Level.OK, "1"), (Level.UNKNOWN, "it did not answer")]
