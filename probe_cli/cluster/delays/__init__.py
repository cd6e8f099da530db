"""Delay analysis: whose own time the job waits for, where, and what that costs.

    rows.py         what one rank has told, as columns
    calls.py        the calls of all ranks as one set of columns, on one clock
    alignment.py    which step of one rank is which of another, and the steps that all of them cover
    matching.py     the calls of all ranks: which ones are one collective, which send met which receive
    blocking.py     when a rank stood still, and for which calls
    timeline.py     each rank's own time between these moments
    charges.py      every wait charged to the own time that caused it
    peers.py        how much longer a stretch of own time took than that of the ranks that do the same work
    replay.py       the same job with some of that taken away
    costs.py        what that saves: share, confidence, how often, since when
    analysis.py     all of it: `analyse`

Plain functions over NumPy columns; nothing here asks anybody. NumPy is imported at the top of these files, so the
folder is a door: import it inside the function that needs it.
"""

__all__: list[str] = []
