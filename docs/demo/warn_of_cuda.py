"""Warn about the size of a CUDA build of torch before it is downloaded.

Reads the report of `pip install --dry-run --no-deps --report -` from stdin; the Makefile pipes it in. If the
package index serves metadata separately, nothing has been downloaded by then.
"""

from __future__ import annotations

import json
import sys

WARNING = """\
note: {name} {version} is a CUDA build: with its libraries, a download of several gigabytes.
      The demo and the tests run on the CPU. For a smaller download, press Ctrl-C and run
          make TORCH_INDEX=<address of an index with CPU builds of torch> demo
"""


def main() -> None:
    try:
        report = json.load(sys.stdin)
    except ValueError:
        return  # pip is too old for reports, or found nothing: then the install itself fails with the reason
    for found in report.get("install", []):
        metadata = found["metadata"]
        needs = " ".join(metadata.get("requires_dist", []))
        if "+cpu" not in metadata["version"] and ("nvidia-" in needs or "cuda-" in needs):
            print(WARNING.format(name=metadata["name"], version=metadata["version"]), file=sys.stderr)


if __name__ == "__main__":
    main()
