"""Ranks side by side: what each tells by plain SQL, and pure functions that say whom the job waits for, or that nobody.

    questions.py    one SQL statement a fact; rows become the columns and dataclasses of facts.py
    gather.py       asks one rank for facts, and for its host's clock
    clocks.py       how far the hosts' clocks are apart
    recent.py       collectives whose rows are not written yet
    hang.py         whether the job stands still, and who has not come to which collective
    study.py        the delay analysis (cluster/delays) of these ranks, and who is whose peer
    phases.py       what each rank does itself in a step, phase by phase
    verdict.py      from all of these to one verdict
    evidence.py     what other tables tell of a rank that is named
    lines.py        the line of the job that it is slow in
    outliers.py     when a module or memory differs by more than noise
    states.py       what it may come to, and the exit codes
    by/             one file for each `--by`

Runs in the CLI. Nothing here asks anybody but gather.py and hang.py. NumPy is imported at the top of these files, so
whoever needs them imports them inside a function.
"""

__all__: list[str] = []
