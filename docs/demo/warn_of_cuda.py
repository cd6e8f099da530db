"""Say how large a torch build with CUDA is before anyone waits for it.

Reads the report of `pip install --dry-run --no-deps --report -` from stdin; the Makefile pipes it in. Where
the package index serves metadata on its own, nothing has been downloaded by then.
"""

from __future__ import annotations

import json
import sys

WARNING = """\
note: {name} {version} is a build with CUDA; with its libraries it is several gigabytes to download.
      The demo and the tests run on the CPU. For a small download, stop this with Ctrl-C and type
          make TORCH_INDEX=<address of an index with CPU builds of torch> demo
"""


def main() -> None:
    try:
        report = json.load(sys.stdin)
    except ValueError:
        return  # pip is too old for reports or found nothing; the install itself will say so
    for found in report.get("install", []):
        metadata = found["metadata"]
        needs = " ".join(metadata.get("requires_dist", []))
        if "+cpu" not in metadata["version"] and ("nvidia-" in needs or "cuda-" in needs):
            print(WARNING.format(name=metadata["name"], version=metadata["version"]), file=sys.stderr)


if __name__ == "__main__":
    main()
