"""One SQL statement over the rows of many hosts, answered as one database that holds them all would answer it.

The pure part, on syntax trees: tree, select, aggregates, groups, rows, split, clocks, functions; scans reads plans.
The part that speaks with hosts: schema_discovery (who has which table), rounds (questions and what came of them),
execute (the whole statement). docs/decisions says why it exists.
"""

from probe_agent.sql.merging import start_merging

__all__ = ["start_merging"]
