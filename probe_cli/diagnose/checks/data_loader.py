"""The settings of the data loaders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.check import Check, Level, Line
from probe_cli.diagnose.finding import NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Asked, Row

__all__ = ["CHECK"]

SQL = """
SELECT loader, place, dataset, batch_size, num_workers, pin_memory, persistent_workers, prefetch_factor, sampler,
    (SELECT count(*) FROM torch.memory) > 0 AS on_gpu,
    (SELECT any_value(value) FROM process.env WHERE name = 'cpus the main thread may use') AS cpus, steps
FROM (SELECT count(*) AS steps FROM python.steps) LEFT JOIN torch.dataloaders ON true
"""
#: Samplers that give every rank all of the data.
OF_ONE_RANK = ("RandomSampler", "SequentialSampler")


def read(asked: Sequence[Asked]) -> Iterable[Line]:
    rows = [row for one in asked for row in one.rows if row["loader"] is not None]
    if not rows and not any(row["steps"] for one in asked for row in one.rows):
        raise NoEvidence("no step has ended, and no torch DataLoader was found")
    if not rows:
        raise NotApplicable("no torch DataLoader was found")
    on_host = Counter(one.host for one in asked)
    for one in asked:
        for row in (row for row in one.rows if row["loader"] is not None):
            yield from (Line(*said, ranks=(one.rank,)) for said in _complaints(row, one, on_host[one.host]))
    yield Line(Level.OK, "; ".join(sorted({_settings(row) for row in rows})[:4]))


def _complaints(row: Row, one: Asked, num_ranks: int) -> Iterable[tuple[Level, str, str]]:
    name = row["place"] or row["loader"]
    if not row["num_workers"]:
        yield (
            Level.WARN,
            f"{name} makes its batches on the training thread (num_workers=0)",
            ("num_workers=4 or more, unless data_wait stays small"),
        )
    if row["num_workers"] and row["cpus"] and row["num_workers"] * num_ranks > int(row["cpus"]):
        told = (
            f"{row['num_workers']} workers on each of {num_ranks} ranks"
            if num_ranks > 1
            else (f"{row['num_workers']} workers")
        )
        yield Level.WARN, f"{name}: {told} share {row['cpus']} cores", "fewer workers a rank"
    if row["on_gpu"] and not row["pin_memory"]:
        yield (
            Level.WARN,
            f"{name} does not pin its batches (pin_memory=False)",
            ("pin_memory=True, and .to(device, non_blocking=True)"),
        )
    if one.world_size > 1 and row["sampler"] in OF_ONE_RANK:
        yield (
            Level.WARN,
            f"{name} gives every rank all of the data ({row['sampler']})",
            ("sampler=DistributedSampler(dataset), and set_epoch(epoch); nothing, if the data set splits itself"),
        )


def _settings(row: Row) -> str:
    on = [name for name in ("pin_memory", "persistent_workers") if row[name]]
    return (
        f"{row['place'] or row['loader']}: batch_size={row['batch_size']}, num_workers={row['num_workers']}"
        + "".join(f", {name}" for name in on)
    )


CHECK = Check(
    "data-loader",
    "Do the data loaders have workers, pinned memory and a sampler for each rank?",
    SQL,
    read,
    ("loader-without-workers", "loader-workers-busy", "data-bound", "same-batches-on-ranks"),
    is_live=True,
)
