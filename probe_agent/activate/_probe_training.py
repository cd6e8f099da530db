"""Module that `probe_training.pth` imports if PROBE is set; both lie at the root of site-packages.

`site` compiles that file's line in every Python that starts, so the line is short and what must not raise is here.
"""

__all__ = ()

try:
    from probe_agent.activate.start import start_if_asked

    start_if_asked()
except Exception as error:  # at the border: the job must start whatever we do
    import os
    import sys
    from contextlib import suppress

    with suppress(Exception):
        # Past Python's buffer: what stayed in there for want of room would make the job exit with 120.
        os.write(sys.stderr.fileno(), f"probe: the recorder is not started: {error!r}\n".encode())
