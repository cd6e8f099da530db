"""Whether a job hangs, and the rank at the end of the chain of waits, of a living job or from dumps of Flight Recorder.

calls.py    the calls of collectives, sends and receives that each rank has made
chain.py    from the open calls to the ends of the chains of waits
dumps.py    reader of the files that Flight Recorder writes
entries.py  the calls in them, of several backends and versions of torch
looks.py    one look at a living rank: its calls, its pace, its stack
doing.py    what a rank does, by its stack
standstill.py  for how long no rank has got on, and whether that is long
ends.py     ranks that have ended, and what the job hung in before
verdict.py  from two looks to one verdict
text.py     the ends of chains in sentences
"""

__all__: list[str] = []
