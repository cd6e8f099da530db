"""Benchmarks of what Probe costs, on real programs: `python -m benchmarks.overhead` and its siblings.

They run beside the measured processes. README.md lists what each command measures.
"""
