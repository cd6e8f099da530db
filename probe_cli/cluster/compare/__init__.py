"""Ranks side by side: what each tells by plain SQL, and pure functions that say for whom the job waits, if for anyone.

    questions.py    one SQL statement a fact; rows become the columns and dataclasses of facts.py
    facts.py        what one rank has told, on one clock for all hosts
    gather.py       asks one rank for facts, and for its host's clock
    study.py        the delay analysis (cluster/delays) of these ranks, and who is whose peer
    phases.py       what each rank does itself in a step, phase by phase
    named.py        which costs are worth a name
    verdict.py      from all of these to one verdict
    evidence.py     what other tables and stacks tell of a named rank
    starved.py      whether a rank takes longer because it waits for a CPU
    crowded.py      whether other work uses a rank's own CPUs, so that data are late on all ranks
    suspended.py    whether a rank's whole process stands still while it waits for data
    explain.py      asks for that evidence, and for a second look at a job that stands still
    outliers.py     when a module or memory differs by more than noise
    comparison.py   the result, and the exit codes
    by/             one file for each `--by`

Runs in the CLI. Nothing here asks anybody but gather.py, hang.py and explain.py.
"""

__all__: list[str] = []
