"""Exports: what a job has recorded, in files that other tools open.

    tables.py      every table of every rank as Parquet files, and these as one DuckDB file
    timeline.py    what each rank tells for a trace, on one clock
    trace.py       these rows as events on tracks, and the events as a file for Perfetto

Runs in the CLI. Imports DuckDB and NumPy at the top, so it is loaded by the one command that needs it.
"""

__all__: list[str] = []
