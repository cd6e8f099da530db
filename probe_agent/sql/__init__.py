"""SQL over what targets have recorded and what they are doing now. Never runs in the target.

    query_engine   server: statements in, answers out      catalog   server: the list of tables
    workers/       the processes in which statements run   engine/   workers: DuckDB over the rings
    tables/        live tables, declarations, notes        merging   CLI: one database of many hosts' answers

Import the module that is needed: the CLI needs `merging` alone, without NumPy and DuckDB.
"""
