"""Small real jobs, each with one fault that `probe diagnose` has to name, and its healthy twin.

`python -m faults NAME` (with `tests` as the path) runs the faulty program until it is killed, `python -m faults NAME
healthy` its twin. `benchmarks.diagnose` runs them all and makes the table in docs/diagnose.md.
"""
