"""What Probe costs, measured on real programs: `python -m benchmarks.overhead` and its siblings.

Runs beside the measured processes. README.md says which command answers which question.
"""
