"""Probe in a notebook or a script: `probe_cli.connect(endpoint)`, and what its questions answer.

    job.py       `connect`, and a job that is asked
    answer.py    rows, which become a DataFrame or Arrow
    views.py     stacks, output of code and findings, as text and as HTML
    magic.py     %probe and %%probe

Runs in the user's process, which is never the target. Loaded when `probe_cli.connect` is asked for.
"""

from __future__ import annotations

from .answer import Answer
from .job import Job, connect
from .magic import load_ipython_extension
from .views import Findings, Output, Stacks

__all__ = ["Answer", "Findings", "Job", "Output", "Stacks", "connect", "load_ipython_extension"]
