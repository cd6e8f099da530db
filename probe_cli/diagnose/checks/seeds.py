"""The seed of torch's generator, on each rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.check import Check, Level, Line, settings_of
from probe_cli.diagnose.finding import NoEvidence
from probe_cli.diagnose.rule import Asked

__all__ = ["CHECK"]

SQL = "SELECT kind, name, value FROM process.env WHERE kind = 'seed'"
#: torch seeds itself with 64 random bits; nobody writes a seed of this size.
RANDOM = 1 << 32


def read(asked: Sequence[Asked]) -> Iterable[Line]:
    told = {one.rank: settings_of(one, "seed").get("torch.initial_seed()", "") for one in asked}
    seeds = {rank: int(value) for rank, value in told.items() if value.isdigit()}
    if not seeds:
        raise NoEvidence("the recorder has not told the seed: it is of an older version")
    by_chance = tuple(rank for rank, seed in seeds.items() if seed >= RANDOM)
    if by_chance:
        yield Line(
            Level.WARN,
            "torch.manual_seed was not called: the run cannot be repeated",
            "torch.manual_seed(SEED) before the model is made; + rank where ranks are to draw differently",
            by_chance,
        )
    elif len(seeds) > 1 and len(set(seeds.values())) == 1:
        (seed,) = set(seeds.values())
        yield Line(Level.OK, f"{seed} on all ranks: dropout and augmentation on a rank are those of the others")
    else:
        yield Line(Level.OK, ", ".join(map(str, sorted(set(seeds.values()))[:4])))


CHECK = Check("seeds", "Is the run seeded, on all ranks?", SQL, read, is_live=True)
