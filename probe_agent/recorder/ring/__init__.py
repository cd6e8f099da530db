"""Recorded rows in shared memory: declaration of a table, layout of its file, writer."""
