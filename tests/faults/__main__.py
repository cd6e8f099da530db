"""`python -m faults NAME [healthy]`: run one program of the gallery, all its ranks, until it is killed."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys

import faults
from faults.gallery import FAULTS
from faults.ranks import launch

for found in pkgutil.iter_modules(faults.__path__):
    if found.name.endswith("_faults"):
        importlib.import_module(f"faults.{found.name}")
if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in FAULTS:
        sys.exit(f"usage: python -m faults NAME [healthy], with one of: {', '.join(FAULTS)}")
    chosen = FAULTS[sys.argv[1]]
    if chosen.num_ranks > 1 and "RANK" not in os.environ:
        ranks = launch([sys.executable, "-m", "faults", *sys.argv[1:]], chosen.num_ranks)
        sys.exit(max(rank.wait() for rank in ranks))
    chosen.program("healthy" in sys.argv[2:])
