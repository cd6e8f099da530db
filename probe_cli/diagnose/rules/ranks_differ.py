"""Ranks run with different versions, settings, environment, seeds or code.

Ranks of one job are to be equal in all that is compared here, but for what names them. A rank with another torch,
another NCCL, another file of the job's own code computes something else, or waits for ever. Seeds that are different on
every rank are usual; one rank with another seed than all others is not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Asked, Limits, Rule
from probe_cli.text import num_ranks

__all__ = ["RULE"]

SQL = """
SELECT kind, name, value, (SELECT count(*) FROM python.steps) AS steps
FROM process.env WHERE kind IN ('version', 'setting', 'seed', 'variable', 'code')
"""
#: Settings that may differ between hosts without harm.
MAY_DIFFER = frozenset({"cpus the main thread may use"})
#: Variables that change what a rank computes or how it talks to others; not those that name a rank, a device, an
#: interface or a file.
COMPARED = re.compile(
    r"(NCCL|TORCH_NCCL|GLOO)_(?!.*(IFNAME|HCA|FILE|HOSTID)).*|TORCH_(DISTRIBUTED_DEBUG|LOGS|COMPILE_DEBUG)"
    r"|(OMP|MKL|OPENBLAS)_NUM_THREADS|PYTORCH_\w*ALLOC_CONF|CUDA_(LAUNCH_BLOCKING|DEVICE_MAX_CONNECTIONS)"
    r"|CUBLAS_WORKSPACE_CONFIG|PYTHON(HASHSEED|OPTIMIZE|PATH)|LD_PRELOAD"
)
WHAT = {"code": "ranks run different code in", "variable": "ranks have different values of"}
#: Of what differs, no more than this is told as findings of their own.
MAX_NAMED = 5

Key = tuple[str, str]  # kind and name


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    if all(one.world_size < 2 for one in asked):
        raise NotApplicable("one rank")
    told = {one.rank: {(row["kind"], row["name"]): row["value"] for row in one.rows} for one in asked if one.rows}
    if len(told) < 2:
        raise NoEvidence("fewer than two ranks have answered")
    keys = sorted({key for values in told.values() for key in values if _is_compared(key)})
    trains = {one.rank for one in asked if one.rows and one.rows[0]["steps"]}
    found = [finding for key in keys if (finding := _difference(key, told, trains)) is not None]
    yield from found[:MAX_NAMED]


def _is_compared(key: Key) -> bool:
    kind, name = key
    return name not in MAY_DIFFER and (kind != "variable" or COMPARED.fullmatch(name) is not None)


def _difference(key: Key, told: Mapping[int, Mapping[Key, str | None]], trains: Collection[int]) -> Finding | None:
    kind, name = key
    # A variable may be set on some ranks only; what else is missing was not told.
    values = {rank: of_rank.get(key) for rank, of_rank in told.items() if key in of_rank or kind == "variable"}
    if kind == "seed":  # of a rank that waits as a spare, or watches, it does not matter
        values = {rank: value for rank, value in values.items() if rank in trains} or values
    (usual, num), *others = Counter(values.values()).most_common()
    if not others or (kind == "seed" and num <= len(values) / 2):
        return None
    odd = tuple(sorted(rank for rank, value in values.items() if value != usual))
    return Finding(
        f"{WHAT.get(kind, 'ranks differ in')} {name}",
        Certainty.POSSIBLE if kind == "seed" else Certainty.CERTAIN,
        share=None if kind in ("version", "code") else 0.0,
        ranks=odd,
        where=name,
        evidence=(f"{_shown(usual)} on {num} ranks; {_shown(values[odd[0]])} on {num_ranks(odd)}",),
        advice=(
            "start all ranks from the same image, the same checkout and the same environment",
            "compare all that is known: `probe -t PID --all compare --by env`",
        ),
        try_first="probe -t PID --all compare --by env",
    )


def _shown(value: str | None) -> str:
    return "not set" if value is None else repr(value)


RULE = Rule(
    "ranks-differ",
    "set-up",
    "Do all ranks run with the same versions, settings, environment and code?",
    SQL,
    judge,
    is_live=True,
)
