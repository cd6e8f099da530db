"""The host server that a target starts for PROBE_LISTEN: `probe`, or one line that says why it cannot start.

Run as a script, in a process of its own: by the Python of `probe run`, or that of the target, which may lack the
packages that a server needs.
"""

import os
import sys

__all__: list[str] = []

if __name__ == "__main__":
    # Neither this folder nor the job's own is where packages are to be found.
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry not in ("", folder)]
    if os.path.dirname(folder) not in sys.path:
        sys.path.append(os.path.dirname(folder))
    try:
        import click  # noqa: F401
        import duckdb  # noqa: F401
        import fastapi  # noqa: F401
        import httpx  # noqa: F401
        import uvicorn  # noqa: F401

        from probe_cli.main import main
    except ImportError as missing:
        sys.exit(
            f"no host server for PROBE_LISTEN: {missing} in {sys.prefix};"
            " pip install probe-training there, or run `probe serve` from where it is installed"
        )
    main()
