"""Recorded rows in shared memory: how a table is declared, how its file is laid out, how it is written."""
