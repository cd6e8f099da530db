"""Accuracy of `probe compare`: does it name the slow rank, phase and cost, and no other: `python -m
benchmarks.stragglers`.

cases.py      kinds of jobs, what can be slow in them, and the right answers
job.py        a running job: slows ranks down, measures the cost
recording.py  its rows as files, and targets made of such files
scoring.py    what `probe compare` answered against the truth
"""
