"""Code that runs on every rank between the same two steps, or on none: a two-phase commit among the ranks.

    coordinator.py  the protocol: prepare, commit, abort
    participant.py  one rank: its connection and its output
    steps.py        which step all ranks can agree on

Runs in the CLI; a rank's side is in probe_agent/recorder/evaluate/two_phase.py.
"""

__all__: list[str] = []
