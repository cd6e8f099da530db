"""Is whoever holds a job up named, where and with its cost, and nobody else? `python -m benchmarks.stragglers`.

cases.py      kinds of jobs, what can be slow in them, what is right
job.py        a running job: makes ranks slow, measures what that costs
recording.py  its rows as files, and targets made of such files
scoring.py    what `probe compare` said against the truth
"""
