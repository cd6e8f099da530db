"""`python -m faults NAME [healthy]`: run one program of the gallery until it is killed."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import faults
from faults.gallery import FAULTS

for found in pkgutil.iter_modules(faults.__path__):
    if found.name.endswith("_faults"):
        importlib.import_module(f"faults.{found.name}")
if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in FAULTS:
        sys.exit(f"usage: python -m faults NAME [healthy], with one of: {', '.join(FAULTS)}")
    FAULTS[sys.argv[1]].program("healthy" in sys.argv[2:])
