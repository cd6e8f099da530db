"""Ranks side by side: what each tells by plain SQL, and pure functions that say who is slow, or different, or nobody.

    questions.py    one SQL statement a fact; rows become the dataclasses of facts.py
    clocks.py       how far the hosts' clocks are apart
    alignment.py    which step of one rank is which of another
    recent.py       collectives whose rows are not written yet
    phases.py       what each rank does itself in a step
    arrivals.py     who came last to each collective, and for how long the others waited
    standing_out.py when a difference is more than noise
    stalls.py       who holds the others up now and then
    standstill.py   whether this is of now
    straggler.py    from all of these to one verdict
    by/             one file for each `--by`

Runs in the CLI. Standard library only; nothing here asks anybody but gather.py.
"""

__all__: list[str] = []
