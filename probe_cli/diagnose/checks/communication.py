"""Backend, variables and time limit of collectives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from probe_cli.diagnose.check import Check, Level, Line, settings_of
from probe_cli.diagnose.finding import NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Asked
from probe_cli.text import seconds

__all__ = ["CHECK"]

SQL = """
SELECT 'variable' AS kind, name, value FROM process.env WHERE kind = 'variable'
UNION ALL SELECT DISTINCT 'backend', backend, NULL FROM torch.process_groups
UNION ALL SELECT 'timeout', CAST(timeout AS VARCHAR), NULL FROM torch.flight_recorder WHERE timeout IS NOT NULL
    GROUP BY timeout
UNION ALL SELECT 'gpu', 'gpu', NULL FROM torch.memory LIMIT 500
"""
SHORT_S, LONG_S = 60.0, 3600.0
#: Variable -> the values that ask for trouble, what they do, and what to do.
TROUBLE = {
    "NCCL_SOCKET_IFNAME": (("lo", "=lo"), "hosts cannot meet over the loopback", "name the interface between hosts"),
    "GLOO_SOCKET_IFNAME": (("lo",), "hosts cannot meet over the loopback", "name the interface between hosts"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": (("0",), "ranks wait for ever for one that failed", "unset it"),
    "NCCL_ASYNC_ERROR_HANDLING": (("0",), "ranks wait for ever for one that failed", "unset it"),
    "TORCH_FR_BUFFER_SIZE": (("0",), "there is no Flight Recorder to tell who hangs", "unset it"),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": (("0",), "there is no Flight Recorder to tell who hangs", "unset it"),
}


def read(asked: Sequence[Asked]) -> Iterable[Line]:
    if all(one.world_size < 2 for one in asked):
        raise NotApplicable("one rank")
    told = [one for one in asked if one.rows]
    if not told:
        raise NoEvidence("no rank has told its process groups")
    num_hosts = len({one.host for one in asked})
    for one in told:
        yield from (
            Line(*said, ranks=(one.rank,)) for said in _complaints(one, settings_of(one, "variable"), num_hosts)
        )
    backends = sorted({row["name"] for one in told for row in one.rows if row["kind"] == "backend"})
    limits = sorted({float(row["name"]) for one in told for row in one.rows if row["kind"] == "timeout"})
    within = f", time limit {' and '.join(map(seconds, limits))}" if limits else ", time limit not known before a call"
    if not backends:
        raise NoEvidence("no process group was seen")
    yield Line(Level.OK, f"{' and '.join(backends)}{within}")


def _complaints(one: Asked, variables: Mapping[str, str], num_hosts: int) -> Iterable[tuple[Level, str, str]]:
    for name, (values, why, remedy) in TROUBLE.items():
        harmless_here = "IFNAME" in name and num_hosts < 2
        if variables.get(name) in values and not harmless_here:
            yield Level.WARN, f"{name}={variables[name]}: {why}", remedy
    kinds = {row["kind"]: row["name"] for row in one.rows}
    if "gpu" in kinds and kinds.get("backend") == "gloo":
        yield (
            Level.WARN,
            "collectives of a GPU job run on gloo, over the host's memory",
            ('init_process_group("nccl"), or "cpu:gloo,cuda:nccl"'),
        )
    limit = float(kinds["timeout"]) if "timeout" in kinds else None
    if limit is not None and limit < SHORT_S:
        yield (
            Level.WARN,
            f"collectives fail after {seconds(limit)}: a checkpoint on one rank takes longer",
            ("init_process_group(timeout=timedelta(minutes=10))"),
        )
    elif limit is not None and limit > LONG_S:
        yield (
            Level.WARN,
            f"a rank that hangs is noticed after {seconds(limit)}",
            ("init_process_group(timeout=timedelta(minutes=10))"),
        )


CHECK = Check(
    "communication",
    "Do backend, variables and time limits of collectives make sense?",
    SQL,
    read,
    ("group-never-forms", "timeout-near"),
    is_live=True,
)
