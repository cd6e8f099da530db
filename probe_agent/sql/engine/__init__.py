"""DuckDB over the rings: snapshots, statements, limits. Runs in query workers."""
