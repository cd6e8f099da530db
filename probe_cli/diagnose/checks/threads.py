"""Threads of torch against the cores that the ranks of a host share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.check import Check, Level, Line, settings_of
from probe_cli.diagnose.finding import NoEvidence
from probe_cli.diagnose.rule import Asked

__all__ = ["CHECK"]

SQL = "SELECT kind, name, value FROM process.env WHERE kind = 'setting'"
THREADS, CORES = "torch.get_num_threads()", "cpus the main thread may use"


def read(asked: Sequence[Asked]) -> Iterable[Line]:
    hosts: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for one in asked:
        told = settings_of(one, "setting")
        if told.get(THREADS, "").isdigit() and told.get(CORES, "").isdigit():
            hosts[one.host].append((one.rank, int(told[THREADS]), int(told[CORES])))
    if not hosts:
        raise NoEvidence("the recorder has not told its threads")
    for host, ranks in sorted(hosts.items()):
        threads, cores = sum(num for _, num, _ in ranks), max(num for *_, num in ranks)
        told_text = f"{host}: {cores} cores, {threads} for torch's threads in {len(ranks)} of its processes"
        if threads > cores:
            most = max(1, cores // len(ranks))
            yield Line(Level.WARN, told_text, f"OMP_NUM_THREADS={most}", tuple(rank for rank, *_ in ranks))
        else:
            yield Line(Level.OK, told_text)


CHECK = Check(
    "threads",
    "Do the ranks of a host have more threads than cores?",
    SQL,
    read,
    ("threads-oversubscribed", "processor-contended"),
    is_live=True,
)
