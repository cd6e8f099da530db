"""Names that a debugger would find: the job's frames, their values, and the lookup of an expression's names."""
