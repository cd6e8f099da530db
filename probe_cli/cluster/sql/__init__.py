"""One SQL statement over the rows of many hosts, answered as one database that holds them all would answer it.

Read in this order: tree.py (a statement as DuckDB's own syntax tree), selects.py, aggregates.py, groups.py, rows.py and
split.py (what each host computes, and how that is put together), scans.py (which columns and rows of a table a
statement needs at all), tables.py and learned.py (who has which table), database.py (the door to DuckDB), course.py
(the rounds of questions).
"""

__all__: list[str] = []
