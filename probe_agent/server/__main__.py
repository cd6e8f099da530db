"""The host server that a command starts: `python -m probe_agent.server --socket PATH --linger SECONDS`.

It serves its unix socket alone, and ends after `--linger` seconds without a client; with 0, when its stdin is closed.
`probe serve` is the one for people.
"""

import argparse
import os
import sys

__all__ = ["main"]


def main() -> int:
    """Serve until told to end, or idle for long enough."""
    options = argparse.ArgumentParser(prog="python -m probe_agent.server", description=__doc__)
    options.add_argument("--socket", required=True)
    options.add_argument("--linger", type=float, required=True)
    options.add_argument("--ready", type=int)
    given = options.parse_args()
    try:
        from probe_agent.server.serve import linger  # run by its path, this file finds the package only in main
    except ImportError as missing:
        sys.exit(f"{missing} in {sys.prefix}; pip install probe-training there")
    return linger(given.socket, given.linger, given.ready)


if __name__ == "__main__":
    # Run by its path, from wherever Probe is installed: this folder is not where packages are.
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry not in ("", folder)]
    root = os.path.dirname(os.path.dirname(folder))
    if root not in sys.path:
        sys.path.insert(0, root)
    sys.exit(main())
